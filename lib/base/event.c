/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/event.h"

const char *ws_phase_name(enum ws_phase phase)
{
	static const char *const names[WS_PHASE_COUNT] = {
		[WS_PHASE_PLAN] = "plan",         [WS_PHASE_CONNECT] = "connect",
		[WS_PHASE_INIT] = "init",         [WS_PHASE_PAUSE] = "pause",
		[WS_PHASE_FLUSH] = "flush",       [WS_PHASE_TRANSFER] = "transfer",
		[WS_PHASE_APPLY] = "apply",       [WS_PHASE_VERIFY] = "verify",
		[WS_PHASE_RESUME] = "resume",     [WS_PHASE_DESTROY] = "destroy",
	};
	return (unsigned)phase < WS_PHASE_COUNT ? names[phase] : "unknown";
}

const char *ws_endpoint_state_name(enum ws_endpoint_state state)
{
	static const char *const names[] = {
		[WS_UNTOUCHED] = "untouched",
		[WS_PARTIAL] = "partial",
		[WS_COMMITTED] = "committed",
	};
	return (unsigned)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}
