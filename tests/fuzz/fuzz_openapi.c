/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a list of routes says, it is read to the end, and the capabilities that come of it do
 * not contradict each other. */
#include "lineage_probe.h"

#include "wsync/tool/capabilities.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check(const struct ws_capabilities *can)
{
	if ((can->pause_modes && !can->pause) || (can->mixed_bucket && !can->load_format) ||
	    (can->load_format && !can->update) || (can->two_phase_whole && !can->two_phase) ||
	    (can->checksums && !can->checker))
		abort();
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const char *const versions[] = { "", "0.4.1", "0.5.4", "0.5.15", "0.5.", "1" };
	struct ws_err err;
	struct ws_json *root = ws_json_parse((const char *)data, size, "openapi.json", &err);
	struct ws_lineage_signs signs = { .version = versions[size % 6] };
	struct ws_capabilities can;
	if (!root)
		return 0;
	const bool own = !ws_lineage_read_openapi(root, "/server_info", &signs);
	for (size_t i = 0; i < ws_capability_count(); i++)
		if (ws_capability_get(&signs.seen, i) && !ws_capability_get(&signs.asked, i))
			abort();
	if (!own && (signs.asked.update || signs.pull_weights))
		abort();
	if ((unsigned)ws_lineage_detect(&signs, &can) >= WS_N_LINEAGES)
		abort();
	check(&can);
	ws_json_free(root);
	return 0;
}
