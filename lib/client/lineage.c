/* SPDX-License-Identifier: Apache-2.0 */
/* lineage.c - the table of lineages, and its correction by the routes of an endpoint.
 *
 * The table was read from the servers' sources, at one point of each lineage's history. The routes
 * and schemas of an older or newer release differ from it, and they decide. */
#include "lineage_probe.h"

#include "wsync/tool/capabilities.h"

#include <string.h>

static const char *const names[WS_N_LINEAGES] = {
	"unknown",     "sglang-0.4", "sglang-0.5", "sglang-2026",
	"xorl-legacy", "xorl",       "session",    "slime",
	"vllm-0.20",   "vllm-0.24",  "vllm-0.27",  "vllm-0.33",
};

const char *ws_lineage_name(enum ws_lineage lineage)
{
	return (unsigned)lineage < WS_N_LINEAGES ? names[lineage] : names[WS_LINEAGE_UNKNOWN];
}

int ws_lineage_parse(const char *name, enum ws_lineage *out)
{
	for (unsigned i = 0; i < WS_N_LINEAGES; i++)
		if (name && !strcmp(name, names[i])) {
			*out = (enum ws_lineage)i;
			return 0;
		}
	return -1;
}

enum ws_server_family ws_lineage_family(enum ws_lineage lineage)
{
	return lineage >= WS_LINEAGE_VLLM_20 && lineage <= WS_LINEAGE_VLLM_33 ? WS_FAMILY_VLLM :
	                                                                       WS_FAMILY_SGLANG;
}

/* ---- the table ---- */

/* All these servers were seen to die if memory is released while they run requests. They also die
 * if tensors arrive in a load format that they do not know. */
#define SGLANG_COMMON \
	.update = true, .from_disk = true, .from_tensor = true, .flush = true, .memory = true, \
	.get_weights = true, .generate = true, .dies_of_format = true, .dies_of_release = true

/* Upstream SGLang in the middle of 2026, from which three other lineages started. */
#define YEAR_2026                                                                                  \
	SGLANG_COMMON, .destroy = true, .from_ipc = true, .load_format = true,                     \
		      .mixed_bucket = true, .weight_version = true, .abort_requests = true,        \
		      .empty_cache = true, .pause = true, .pause_modes = true,                     \
		      .flush_waits = true, .set_version = true, .checker = true,                   \
		      .checksums = true, .routed_experts = true, .dies_of_flush = true,            \
		      .dies_of_group = true

/* vLLM. A prompt between the start and the end of an update ends the server since 0.21. Before, a
 * prompt after a failed request does; and answers between two requests fill the prefix cache, which
 * no request empties with certainty (/reset_prefix_cache up to 0.25 always says yes). */
#define VLLM                                                                                       \
	.transfer = true, .reload = true, .load_format = true, .mixed_bucket = true,               \
	.pause = true, .pause_wait = true, .flush = true, .sleep = true, .health_open = true,      \
	.completions = true, .eager_comm = true, .stale_answers = true, .dies_of_prompt = true
#define VLLM_SESSION VLLM, .transfer_session = true

static const struct ws_capabilities table[WS_N_LINEAGES] = {
	[WS_LINEAGE_UNKNOWN] = {
		SGLANG_COMMON, .destroy = true, .pause = true, .set_version = true,
		.checker = true, .late_refusal = true, .dies_of_flush = true, .dies_of_group = true,
		.stuck_prepare = true,
	},
	[WS_LINEAGE_SGLANG_04] = { SGLANG_COMMON, .dies_of_flush = true, .dies_of_group = true },
	/* load_format depends on the month of the release: only a schema can confirm it. */
	[WS_LINEAGE_SGLANG_05] = {
		SGLANG_COMMON, .destroy = true, .from_ipc = true, .weight_version = true,
		.abort_requests = true, .pause = true, .set_version = true, .dies_of_flush = true,
		.dies_of_group = true,
	},
	[WS_LINEAGE_SGLANG_2026] = { YEAR_2026 },
	[WS_LINEAGE_XORL_LEGACY] = {
		SGLANG_COMMON, .destroy = true, .two_phase = true, .two_phase_whole = true,
		.receive = true, .ep_scatter = true, .load_format = true, .mixed_bucket = true,
		.weight_version = true, .abort_requests = true, .free_kv = true, .pause = true,
		.pause_modes = true, .set_version = true, .health_open = true, .list_weights = true,
		.checker = true, .routed_experts = true, .eager_comm = true, .late_refusal = true,
	},
	[WS_LINEAGE_XORL] = {
		YEAR_2026, .two_phase = true, .two_phase_whole = true, .eager_comm = true,
		.stuck_prepare = true,
	},
	[WS_LINEAGE_SESSION] = { YEAR_2026, .session = true, .selector = true,
	                         .skip_tensors = true },
	[WS_LINEAGE_SLIME] = { YEAR_2026, .post_process = true },
	[WS_LINEAGE_VLLM_20] = { VLLM, .ipc_tensors = true },
	[WS_LINEAGE_VLLM_24] = { VLLM_SESSION, .ipc_packed = true },
	[WS_LINEAGE_VLLM_27] = {
		VLLM_SESSION, .set_version = true, .ipc_packed = true, .ipc_at_init = true,
	},
	[WS_LINEAGE_VLLM_33] = {
		VLLM_SESSION, .set_version = true, .packed_at_init = true, .unique_id = true,
		.shutdown = true, .checksums = true, .ipc_packed = true, .ipc_at_init = true,
	},
};

void ws_lineage_capabilities(enum ws_lineage lineage, struct ws_capabilities *out)
{
	*out = table[(unsigned)lineage < WS_N_LINEAGES ? lineage : WS_LINEAGE_UNKNOWN];
}

/* ---- fields by name ---- */

#define FIELD(kind, f) { kind, #f, offsetof(struct ws_capabilities, f) }
static const struct {
	const char *kind, *name;
	size_t at;
} fields[] = {
	FIELD("weights", update), FIELD("weights", destroy), FIELD("weights", two_phase),
	FIELD("weights", two_phase_whole), FIELD("weights", receive),
	FIELD("weights", ep_scatter), FIELD("weights", session), FIELD("weights", post_process),
	FIELD("weights", from_disk), FIELD("weights", from_tensor), FIELD("weights", from_ipc),
	FIELD("weights", sparse_delta), FIELD("weights", transfer),
	FIELD("weights", transfer_session), FIELD("weights", packed_at_init),
	FIELD("weights", ipc_tensors), FIELD("weights", ipc_packed),
	FIELD("weights", ipc_at_init), FIELD("weights", unique_id), FIELD("weights", shutdown),
	FIELD("weights", reload),
	FIELD("update", load_format), FIELD("update", mixed_bucket),
	FIELD("update", weight_version), FIELD("update", abort_requests),
	FIELD("update", free_kv), FIELD("update", empty_cache), FIELD("update", selector),
	FIELD("life", pause), FIELD("life", pause_modes), FIELD("life", pause_wait),
	FIELD("life", flush), FIELD("life", flush_waits),
	FIELD("life", set_version), FIELD("life", memory),
	FIELD("life", sleep), FIELD("life", health_open),
	FIELD("answers", list_weights), FIELD("answers", checker), FIELD("answers", checksums),
	FIELD("answers", skip_tensors), FIELD("answers", get_weights), FIELD("answers", generate),
	FIELD("answers", completions), FIELD("answers", routed_experts),
	FIELD("beware", eager_comm), FIELD("beware", late_refusal),
	FIELD("beware", dies_of_flush), FIELD("beware", dies_of_group),
	FIELD("beware", dies_of_format), FIELD("beware", dies_of_release),
	FIELD("beware", forces_flush), FIELD("beware", stuck_prepare),
	FIELD("beware", dies_of_prompt), FIELD("beware", stale_answers),
};
enum { N_FIELDS = sizeof fields / sizeof *fields };
_Static_assert(N_FIELDS * sizeof(bool) == sizeof(struct ws_capabilities), "each field has a name");

size_t ws_capability_count(void)
{
	return N_FIELDS;
}

const char *ws_capability_name(size_t i)
{
	return i < N_FIELDS ? fields[i].name : "";
}

const char *ws_capability_kind(size_t i)
{
	return i < N_FIELDS ? fields[i].kind : "";
}

static bool *field(struct ws_capabilities *can, size_t i)
{
	return (bool *)((char *)can + fields[i].at);
}

bool ws_capability_get(const struct ws_capabilities *can, size_t i)
{
	return i < N_FIELDS && *(const bool *)((const char *)can + fields[i].at);
}

void ws_capability_set(struct ws_capabilities *can, size_t i, bool value)
{
	if (i < N_FIELDS)
		*field(can, i) = value;
}

/* ---- the routes of an endpoint decide ---- */

/* Clears the fields of requests whose route is missing. */
static void drop_orphans(struct ws_capabilities *can)
{
	can->load_format &= can->update;
	can->mixed_bucket &= can->load_format;
	can->weight_version &= can->update;
	can->abort_requests &= can->update;
	can->free_kv &= can->update;
	can->empty_cache &= can->update;
	can->selector &= can->update;
	can->two_phase_whole &= can->two_phase;
	can->stuck_prepare &= can->two_phase;
	can->pause_modes &= can->pause;
	can->flush_waits &= can->flush;
	can->checksums &= can->checker;
	can->skip_tensors &= can->checker;
	can->routed_experts &= can->generate;
}

/* The third number of "0.5.N", or -1. Releases from 0.5.7 on are from 2026. */
static int minor_of_05(const char *version)
{
	int n = 0;
	if (strncmp(version, "0.5.", 4) || version[4] < '0' || version[4] > '9')
		return -1;
	for (const char *p = version + 4; *p >= '0' && *p <= '9' && n < 1000; p++)
		n = n * 10 + (*p - '0');
	return n;
}

/* What upstream's releases changed and no route shows. */
static void correct(int minor, const struct ws_lineage_signs *signs, struct ws_capabilities *can)
{
	const struct ws_capabilities *asked = &signs->asked;
	can->flush_waits &= asked->flush_waits || minor >= 10;
	can->empty_cache &= asked->empty_cache || minor >= 11;
	can->checksums &= asked->checksums || minor >= 12;
	can->dies_of_group &= minor < 21;
	/* Since 0.5.22 a flush that is refused after an update no longer ends the server. */
	can->dies_of_flush &= minor < 22;
	can->late_refusal |= minor >= 22;
}

static void apply(enum ws_lineage lineage, const struct ws_lineage_signs *signs,
                  struct ws_capabilities *can)
{
	const int minor = minor_of_05(signs->version ? signs->version : "");
	ws_lineage_capabilities(lineage, can);
	for (size_t i = 0; i < N_FIELDS; i++)
		if (ws_capability_get(&signs->asked, i))
			*field(can, i) = ws_capability_get(&signs->seen, i);
	/* load_format is older than the bucket: before 0.5.5 it means another format. */
	if (lineage == WS_LINEAGE_SGLANG_05 && minor >= 0 && minor < 5)
		can->load_format = false;
	/* Only a version that fits the routes is believed. */
	if ((lineage == WS_LINEAGE_SGLANG_2026 && minor >= 0 && minor < 21) ||
	    (lineage == WS_LINEAGE_SESSION && minor >= 21))
		correct(minor, signs, can);
	can->update &= !signs->one_by_one;
	drop_orphans(can);
}

static enum ws_lineage by_version(const char *version)
{
	const int minor = minor_of_05(version);
	if (minor >= 21) /* every release since has sessions */
		return WS_LINEAGE_SESSION;
	if (minor >= 0)
		return minor < 7 ? WS_LINEAGE_SGLANG_05 : WS_LINEAGE_SGLANG_2026;
	if (!strncmp(version, "0.5", 3))
		return WS_LINEAGE_SGLANG_05;
	if (!strncmp(version, "0.4.", 4) || !strcmp(version, "0.4"))
		return WS_LINEAGE_SGLANG_04;
	return WS_LINEAGE_UNKNOWN;
}

/* Chooses the upstream lineage by routes that earlier releases lack. Upstream can pause since 0.4.9
 * and reports a weight version since 0.5.1. */
static enum ws_lineage by_year(const struct ws_lineage_signs *signs)
{
	const struct ws_capabilities *asked = &signs->asked, *seen = &signs->seen;
	enum ws_lineage said = by_version(signs->version ? signs->version : "");
	if (said == WS_LINEAGE_SESSION && !asked->session)
		return said;
	if (said == WS_LINEAGE_SESSION) /* its routes have no sessions */
		said = WS_LINEAGE_SGLANG_2026;
	if (seen->checker || seen->pause_modes || seen->empty_cache)
		return WS_LINEAGE_SGLANG_2026;
	if (seen->pause && said == WS_LINEAGE_SGLANG_04 && asked->set_version &&
	    !seen->set_version && !seen->destroy && !seen->from_ipc)
		return said;
	if (seen->pause || seen->set_version || seen->destroy || seen->from_ipc)
		return asked->checker || said == WS_LINEAGE_UNKNOWN ? WS_LINEAGE_SGLANG_05 : said;
	if (seen->update && asked->pause && asked->set_version)
		return said == WS_LINEAGE_SGLANG_05 ? said : WS_LINEAGE_SGLANG_04;
	return said;
}

/* The second number of "0.N" or "0.N.M"; -1: another form, or "0.1.devN", of a build from source
 * without tags. */
static int minor_of_vllm(const char *version)
{
	int n = 0;
	if (strncmp(version, "0.1.dev", 7) == 0)
		return -1;
	if (strncmp(version, "0.", 2) || version[2] < '0' || version[2] > '9')
		return version[0] >= '1' && version[0] <= '9' ? 1000 : -1;
	for (const char *p = version + 2; *p >= '0' && *p <= '9' && n < 1000; p++)
		n = n * 10 + (*p - '0');
	return n;
}

bool ws_lineage_vllm_reads(const char *version)
{
	return minor_of_vllm(version) >= 0;
}

enum ws_lineage ws_lineage_vllm(const char *version, struct ws_capabilities *can)
{
	const int minor = minor_of_vllm(version);
	const enum ws_lineage lineage = minor < 0 || minor >= 28 ? WS_LINEAGE_VLLM_33 :
	                                minor >= 25              ? WS_LINEAGE_VLLM_27 :
	                                minor >= 21              ? WS_LINEAGE_VLLM_24 :
	                                                           WS_LINEAGE_VLLM_20;
	ws_lineage_capabilities(lineage, can);
	/* Versions that cannot be read, such as those of a build from source, count as new. */
	can->transfer &= minor < 0 || minor >= 16;
	can->set_version &= minor < 0 || minor >= 27;
	can->ipc_tensors &= minor >= 18;
	can->ipc_packed &= minor < 0 || minor >= 22;
	can->ipc_at_init &= minor < 0 || minor >= 27;
	can->unique_id &= minor < 0 || minor >= 30;
	can->shutdown &= minor < 0 || minor >= 32;
	can->checksums &= minor < 0 || minor >= 32;
	return lineage;
}

enum ws_lineage ws_lineage_detect(const struct ws_lineage_signs *signs, struct ws_capabilities *can)
{
	const struct ws_capabilities *seen = &signs->seen;
	enum ws_lineage lineage;
	if (seen->receive || seen->ep_scatter)
		lineage = WS_LINEAGE_XORL_LEGACY;
	else if (seen->two_phase)
		lineage = WS_LINEAGE_XORL;
	else if (seen->session)
		lineage = WS_LINEAGE_SESSION;
	else if (seen->post_process || signs->pull_weights)
		lineage = WS_LINEAGE_SLIME;
	else if (signs->asked.update && !seen->update)
		lineage = WS_LINEAGE_UNKNOWN;
	else
		lineage = by_year(signs);
	apply(lineage, signs, can);
	return lineage;
}
