/* SPDX-License-Identifier: Apache-2.0 */
/* host.h - names to addresses, for sock.c, host.c and lookup.c only. */
#ifndef WS_NET_HOST_H
#define WS_NET_HOST_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

/* TCP addresses of host; brackets around an IPv6 literal are taken off. passive: to bind to, and
 * then the host may be empty. Literals never block. The caller frees *out with freeaddrinfo. */
int ws_host_resolve(const char *host, uint16_t port, bool passive, ws_deadline until,
                    const struct ws_cancel *cancel, struct addrinfo **out, struct ws_err *err);

/* Of those who were given no deadline. */
#define WS_RESOLVE_NS (10 * WS_NS_PER_S)

/* What getaddrinfo says goes to *rc, with errno. -1: it does not say anything
 * in time, or was cancelled. */
int ws_host_lookup(const char *name, const char *service, const struct addrinfo *hints,
                   ws_deadline until, const struct ws_cancel *cancel, int *rc,
                   struct addrinfo **out, struct ws_err *err);

#endif
