/* SPDX-License-Identifier: Apache-2.0 */
/* lose_names.c - for LD_PRELOAD: DNS fails from some time on.
 *
 * The host server.test is 127.0.0.1 until the file $LOST_NAMES exists. Then the name is not
 * found, and time(2) returns an hour more, so that cached addresses are too old. The name server
 * of silent.test never answers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HOUR = 3600 };

static int are_lost(void)
{
	const char *file = getenv("LOST_NAMES");
	return file && access(file, F_OK) == 0;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
	static __typeof__(&getaddrinfo) real;
	if (!real)
		real = (__typeof__(&getaddrinfo))dlsym(RTLD_NEXT, "getaddrinfo");
	if (node && strcmp(node, "server.test") == 0)
		return are_lost() ? EAI_AGAIN : real("127.0.0.1", service, hints, out);
	if (node && strcmp(node, "silent.test") == 0 && !(hints->ai_flags & AI_NUMERICHOST))
		for (;;)
			pause();
	return real(node, service, hints, out);
}

time_t time(time_t *out)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	const time_t t = now.tv_sec + (are_lost() ? HOUR : 0);
	if (out)
		*out = t;
	return t;
}

