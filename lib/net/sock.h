/* SPDX-License-Identifier: Apache-2.0 */
/* sock.h - TCP sockets with deadlines, and properties of addresses that a rendezvous needs. */
#ifndef WS_NET_SOCK_H
#define WS_NET_SOCK_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <netdb.h>

enum { WS_HOST_MAX = 256 }; /* limit of a host name or address literal with its NUL */

/* Listens on host (name or literal; "" or NULL: every interface, dual stack), port 0 for any.
 * Non-blocking, close-on-exec, backlog 1024. Returns the descriptor; *bound_port is the port.
 * `until` and `cancel` are for the look-up of a name. */
int ws_sock_listen(const char *host, uint16_t port, ws_deadline until,
                   const struct ws_cancel *cancel, uint16_t *bound_port, struct ws_err *err);

/* Connects (tries all addresses of the name in turn) before the deadline, which includes the
 * name's look-up; TCP_NODELAY, non-blocking, close-on-exec. Refused and unreachable: WS_EREACH
 * at once (the caller may retry). */
int ws_sock_connect(const char *host, uint16_t port, ws_deadline until,
                    const struct ws_cancel *cancel, struct ws_err *err);
int ws_sock_connect_addr(const struct sockaddr *sa, socklen_t len, ws_deadline until,
                         const struct ws_cancel *cancel, struct ws_err *err);

/* Finds out within a minute of silence that the peer's machine or the network is gone: neither
 * sends anything when it loses power. Reads then fail with WS_EDATA. */
void ws_sock_keep_alive(int fd);

/* Waits until fd is ready for `events` (POLLIN/POLLOUT). 0: ready; -1: WS_ETIMEOUT,
 * WS_ECANCELLED or WS_ESYSTEM; `what` is the subject of the message. */
int ws_sock_wait(int fd, short events, ws_deadline until, const struct ws_cancel *cancel,
                 const char *what, struct ws_err *err);
/* Read or write exactly n bytes on a non-blocking socket. A close by the peer is WS_EDATA
 * "<what>: closed by the peer". */
int ws_sock_read(int fd, void *dst, size_t n, ws_deadline until, const struct ws_cancel *cancel,
                 const char *what, struct ws_err *err);
int ws_sock_write(int fd, const void *src, size_t n, ws_deadline until,
                  const struct ws_cancel *cancel, const char *what, struct ws_err *err);

/* "10.0.0.1:29600", "[::1]:80"; an IPv4-mapped address prints as IPv4. */
void ws_sock_name(const struct sockaddr *sa, char *dst, size_t n);

/* The deadline and the flag of the following functions are for the look-up of a name. */

/* True if every address of host is a loopback address. */
int ws_host_is_loopback(const char *host, ws_deadline until, const struct ws_cancel *cancel,
                        bool *loopback, struct ws_err *err);
/* True if every address of host belongs to this machine: loopback, or an interface's. */
int ws_host_is_local(const char *host, ws_deadline until, const struct ws_cancel *cancel,
                     bool *local, struct ws_err *err);
/* Writes the name of the interface that has this address, a literal; "" for loopback and for an
 * address of no interface. */
void ws_host_interface(const char *literal, char *name, size_t n);
/* True if host is this machine as far as that shows without a look-up: an address of its
 * interfaces or of loopback in any notation, one that stands for all of them (connecting to it
 * reaches this machine), localhost, or the machine's own name. */
bool ws_host_is_here(const char *host);
/* True for "", "*" and the addresses 0.0.0.0 and :: in any notation: they bind everywhere and mean
 * nothing to a remote peer. */
bool ws_host_is_wildcard(const char *host);
/* The address this machine would use to talk to host, as a literal (no packet is sent). */
int ws_host_local_toward(const char *host, ws_deadline until, const struct ws_cancel *cancel,
                         char *dst, size_t n, struct ws_err *err);

/* Name resolution, for sock.c, host.c and lookup.c only. */
/* Resolves host to TCP addresses; brackets around an IPv6 literal are removed. passive: for
 * binding; the host may then be empty. Literals never block. The caller frees *out with
 * freeaddrinfo. */
int ws_host_resolve(const char *host, uint16_t port, bool passive, ws_deadline until,
                    const struct ws_cancel *cancel, struct addrinfo **out, struct ws_err *err);

/* True for localhost and the names below it, RFC 6761. */
bool ws_host_is_localhost(const char *name);
/* Stores getaddrinfo's result in *rc, with errno. -1: no result in time, cancelled, or no thread
 * for the look-up. */
int ws_host_lookup(const char *name, const char *service, const struct addrinfo *hints,
                   ws_deadline until, const struct ws_cancel *cancel, int *rc,
                   struct addrinfo **out, struct ws_err *err);

#endif
