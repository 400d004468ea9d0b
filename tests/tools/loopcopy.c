/* SPDX-License-Identifier: Apache-2.0 */
/* loopcopy.c - the bound that a push over one local connection is compared
 * with: loopcopy [-w] [-r] FILE
 *
 * One process sends the file through one TCP connection on the loopback interface, another reads it
 * into a buffer and throws it away. By sendfile(2), or with -w by write(2) from a mapping; with -r
 * the sender asks for reno, as wsync-push does inside a machine (BBR paces even there). Prints
 * "SECONDS BYTES", from connect to the reader's end of file. No code of wsync is in it. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

static _Noreturn void die(const char *what)
{
	perror(what);
	exit(8);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int listen_local(struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(addr, 0, sizeof(*addr));
	addr->sin_family = AF_INET;
	addr->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)addr, len) || listen(fd, 1) ||
	    getsockname(fd, (struct sockaddr *)addr, &len))
		die("listen");
	return fd;
}

/* The child: takes one connection and reads it to its end. */
static _Noreturn void discard(int listener)
{
	static char buf[CHUNK];
	int fd = accept(listener, NULL, NULL);
	ssize_t n;

	if (fd < 0)
		die("accept");
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		;
	if (n < 0)
		die("read");
	_exit(0);
}

static void send_mapped(int sock, int file, off_t size)
{
	char *map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file, 0);

	if (map == MAP_FAILED)
		die("mmap");
	for (off_t at = 0; at < size;) {
		size_t left = (size_t)(size - at);
		ssize_t n = write(sock, map + at, left < CHUNK ? left : CHUNK);

		if (n <= 0)
			die("write");
		at += n;
	}
}

static void send_file(int sock, int file, off_t size)
{
	for (off_t at = 0; at < size;) {
		if (sendfile(sock, file, &at, (size_t)(size - at)) <= 0)
			die("sendfile");
	}
}

int main(int argc, char **argv)
{
	bool mapped = false, reno = false;
	struct sockaddr_in addr;
	struct stat st;
	int file, listener, sock, one = 1, status;
	pid_t reader;
	double began;

	for (int opt; (opt = getopt(argc, argv, "wr")) != -1;) {
		mapped = mapped || opt == 'w';
		reno = reno || opt == 'r';
		if (opt == '?')
			optind = argc;
	}
	if (optind != argc - 1) {
		fprintf(stderr, "usage: loopcopy [-w] [-r] FILE\n");
		return 2;
	}
	file = open(argv[argc - 1], O_RDONLY | O_CLOEXEC);
	if (file < 0 || fstat(file, &st))
		die(argv[argc - 1]);
	listener = listen_local(&addr);
	reader = fork();
	if (reader < 0)
		die("fork");
	if (reader == 0)
		discard(listener);
	began = now();
	sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock < 0 || connect(sock, (struct sockaddr *)&addr, sizeof(addr)))
		die("connect");
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (reno)
		setsockopt(sock, IPPROTO_TCP, TCP_CONGESTION, "reno", sizeof("reno") - 1);
	if (mapped)
		send_mapped(sock, file, st.st_size);
	else
		send_file(sock, file, st.st_size);
	close(sock);
	if (waitpid(reader, &status, 0) < 0 || status != 0)
		die("reader");
	printf("%.6f %lld\n", now() - began, (long long)st.st_size);
	return 0;
}
