/* SPDX-License-Identifier: Apache-2.0 */
/* host.h - names to addresses, for sock.c and host.c only. */
#ifndef WS_NET_HOST_H
#define WS_NET_HOST_H

#include "wsync/err.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

/* TCP addresses of host; brackets around an IPv6 literal are taken off. passive: to bind to, and then
 * the host may be empty. Blocks as long as the system's resolver does; literals never block.
 * The caller frees *out with freeaddrinfo. */
int ws_host_resolve(const char *host, uint16_t port, bool passive, struct addrinfo **out,
                    struct ws_err *err);

#endif
