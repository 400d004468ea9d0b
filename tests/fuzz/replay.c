/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - the main of a fuzz target built without libFuzzer: feeds it each file named, or
 * each file of a directory named, and says as TAP that it came back. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static int count;

static void feed(const char *path)
{
	FILE *f = fopen(path, "rb");
	if (!f) {
		printf("not ok %d - %s cannot be opened\n", ++count, path);
		return;
	}
	struct stat st;
	unsigned char *data = NULL;
	size_t n = 0;
	if (fstat(fileno(f), &st) == 0 && st.st_size > 0) {
		data = malloc((size_t)st.st_size);
		n = data ? fread(data, 1, (size_t)st.st_size, f) : 0;
	}
	fclose(f);
	/* An allocation of exactly this size lets the sanitizers see a read past the end. */
	LLVMFuzzerTestOneInput(data, n);
	free(data);
	printf("ok %d - %s\n", ++count, path);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct stat st;
		struct dirent **entries;
		if (stat(argv[i], &st) || !S_ISDIR(st.st_mode)) {
			feed(argv[i]);
			continue;
		}
		const int n = scandir(argv[i], &entries, NULL, alphasort);
		for (int k = 0; k < n; k++) {
			char path[4096];
			snprintf(path, sizeof path, "%s/%s", argv[i], entries[k]->d_name);
			if (entries[k]->d_name[0] != '.')
				feed(path);
			free(entries[k]);
		}
		if (n >= 0)
			free(entries);
	}
	printf("1..%d\n", count);
	return count ? 0 : 1;
}
