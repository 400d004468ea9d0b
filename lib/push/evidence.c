/* SPDX-License-Identifier: Apache-2.0 */
/* evidence.c - the words of success that the record of a push allows. This file alone has them;
 * push_evidence.c alone fills the record. */
#include "wsync/evidence.h"

#include "wsync/push.h"
#include "wsync/tool/name_check_run.h"

#include <stdio.h>
#include <string.h>

/* ---- words ---- */

#define NAME(names, i) ((unsigned)(i) < sizeof names / sizeof names[0] ? names[i] : "unknown")

const char *ws_identity_end_name(enum ws_identity_end end)
{
	static const char *const names[] = { "unknown", "same", "other", "unanswered", "untold" };
	return NAME(names, end);
}

const char *ws_identity_strength_name(enum ws_identity_strength strength)
{
	static const char *const names[] = { "none", "weak", "sure" };
	return NAME(names, strength);
}

const char *ws_names_by_name(enum ws_names_by by)
{
	static const char *const names[] = { "nothing", "list", "rules", "own-config",
		                             "reference" };
	return NAME(names, by);
}

const char *ws_evidence_word_name(enum ws_evidence_word word)
{
	static const char *const names[WS_N_WORDS] = { "none", "staged", "acknowledged",
		                                       "committed" };
	return NAME(names, word);
}

/* Is it known that the server that has confirmed the weights still runs? A group breaks when one
 * of its members ends, and a server that restarts reports its first label again. A server that
 * tells its start, and then shows a process that is new, is doubted all the same. */
static bool is_the_same(const struct ws_evidence *e)
{
	if (e->identity.strength == WS_IDENTITY_SURE)
		return e->end == WS_END_SAME;
	return (e->end == WS_END_SAME || e->end == WS_END_UNTOLD) &&
	       (e->group_alive || (e->label_set && e->label_read));
}

enum ws_evidence_word ws_evidence_word(const struct ws_evidence *e)
{
	if (e->end == WS_END_OTHER || e->end == WS_END_UNANSWERED)
		return WS_WORD_NONE;
	if (e->staged)
		return WS_WORD_STAGED;
	if (!e->whole || !e->closed || e->different)
		return WS_WORD_NONE;
	return is_the_same(e) ? WS_WORD_COMMITTED : WS_WORD_ACKNOWLEDGED;
}

static bool has_hash(const struct ws_ev_end *e)
{
	return e->verify && strcmp(e->verify, "hash") == 0;
}

const char *ws_ev_end_words(const struct ws_ev_end *e)
{
	if (has_hash(e))
		return e->not_covered ? ", what was sent verified by hash" : ", verified by hash";
	if (e->written) /* there is no server */
		return e->names && e->names->checked ? ", names fit its config.json" : "";
	if (e->names && e->names->own_config)
		return ", names fit their own config.json (the server's was not read)";
	if (!e->names)
		return "";
	return e->names->checked ? ", names verified" : ", names not compared";
}
