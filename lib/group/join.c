/* SPDX-License-Identifier: Apache-2.0 */
#include "join.h"

#include "base64.h"
#include "group_state.h"

enum { ID_TEXT_MAX = 256 };

static const struct ws_capabilities *can(const struct ws_member *m)
{
	return &m->info->can;
}

static void write_sglang(const struct ws_group *g, const struct ws_member *m, struct ws_jw *w)
{
	ws_jw_str(w, "master_address", g->host);
	ws_jw_uint(w, "master_port", ws_store_port(g->store));
	ws_jw_uint(w, "rank_offset", m->rank_offset);
	ws_jw_uint(w, "world_size", g->world_size);
	ws_jw_str(w, "group_name", g->name);
	ws_jw_str(w, "backend", g->opts.ops->name);
}

static void write_meeting(const struct ws_group *g, const struct ws_member *m, struct ws_jw *w)
{
	const struct ws_transport_ops *ops = g->transport->ops;
	size_t n = 0;
	const void *id = ops->unique_id && can(m)->unique_id ? ops->unique_id(g->transport, &n) :
	                                                       NULL;
	struct ws_buf text;
	if (!id) {
		ws_jw_str(w, "master_address", g->host);
		ws_jw_uint(w, "master_port", ws_store_port(g->store));
		return;
	}
	ws_buf_init(&text, ID_TEXT_MAX);
	ws_base64_encode(&text, id, n);
	ws_jw_str(w, "nccl_unique_id_b64", ws_buf_str(&text));
	ws_buf_free(&text);
}

static void write_vllm(const struct ws_group *g, const struct ws_member *m, struct ws_jw *w)
{
	ws_jw_object(w, "init_info");
	write_meeting(g, m, w);
	ws_jw_uint(w, "rank_offset", m->rank_offset);
	ws_jw_uint(w, "world_size", g->world_size);
	if (can(m)->packed_at_init) {
		ws_jw_bool(w, "packed", g->opts.packed);
		ws_jw_uint(w, "packed_buffer_size_bytes", WS_VLLM_UNCUT);
		ws_jw_uint(w, "packed_num_buffers", 1);
	}
	ws_jw_end_object(w);
}

const char *ws_join_path(const struct ws_member *m)
{
	return m->info ? "/init_weight_transfer_engine" : "/init_weights_update_group";
}

void ws_join_write(const struct ws_group *g, const struct ws_member *m, struct ws_buf *body)
{
	struct ws_jw w;
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	if (m->info)
		write_vllm(g, m, &w);
	else
		write_sglang(g, m, &w);
	ws_jw_end_object(&w);
}

const char *ws_leave_path(const struct ws_member *m)
{
	if (!m->info)
		return "/destroy_weights_update_group";
	return m->info->gloo_worker              ? "/collective_rpc" :
	       can(m)->shutdown && !m->inside ? "/shutdown_weight_transfer_engine" :
	                                           NULL;
}

void ws_leave_write(const struct ws_group *g, const struct ws_member *m, struct ws_buf *body)
{
	struct ws_jw w;
	if (m->info && !m->info->gloo_worker)
		return; /* the route takes no body */
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	if (m->info)
		ws_jw_str(&w, "method", "wsync_leave");
	else
		ws_jw_str(&w, "group_name", g->name);
	ws_jw_end_object(&w);
}
