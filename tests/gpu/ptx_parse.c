/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_parse.c - PTX text to modules, which are what nvcc writes for lib/gpu/kernels/:
 * kernels of one parameter, static shared memory, neither functions nor memory of their own.
 * Anything else is refused. */
#include "ptx_parse.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

enum { SHARED_GAP = 256 };

void ptx_complain(struct ptx_trouble *t, const char *fmt, ...)
{
	if (t->text[0])
		return;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(t->text, sizeof t->text, fmt, ap);
	va_end(ap);
}

bool ptx_refuse(struct ptx_parser *p, const char *what, const char *which)
{
	ptx_complain(p->why, "%s:%u: %s: %.100s", p->m->file, p->line, what, which);
	return false;
}

/* ---- text ---- */

static void skip_space(struct ptx_parser *p)
{
	for (;; p->at++) {
		if (*p->at == '\n')
			p->line++;
		else if (p->at[0] == '/' && p->at[1] == '/')
			p->at += strcspn(p->at, "\n") - 1;
		else if (!isspace((unsigned char)*p->at))
			return;
	}
}

/* What comes up to one of `ends`, which is passed over, with all space made one blank. */
static bool take(struct ptx_parser *p, const char *ends, char *out, size_t size)
{
	size_t n = 0;
	while (*p->at && !strchr(ends, *p->at)) {
		const char *before = p->at;
		if (n + 2 > size)
			return ptx_refuse(p, "too long", "a statement");
		skip_space(p);
		if (p->at == before)
			out[n++] = *p->at++;
		else if (n && out[n - 1] != ' ')
			out[n++] = ' ';
	}
	out[n && out[n - 1] == ' ' ? n - 1 : n] = '\0';
	if (!*p->at)
		return ptx_refuse(p, "ends early", out);
	p->at++;
	return true;
}

static void skip_line(struct ptx_parser *p)
{
	p->at += strcspn(p->at, "\n");
}

/* ---- kernels ---- */

/* .shared .align 4 .b8 name[32]. Arrays lie apart, so that who leaves one
 * does not come into the next. */
static bool declare_shared(struct ptx_parser *p, const char *text)
{
	struct ptx_module *m = p->m;
	unsigned align, bytes;
	struct ptx_array *a = &m->arrays[m->n_arrays];
	if (m->n_arrays == PTX_ARRAYS ||
	    sscanf(text, ".shared .align %u .b8 %127[^[][%u]", &align, a->name, &bytes) != 3 ||
	    align > SHARED_GAP || bytes > 1 << 20)
		return ptx_refuse(p, "shared memory", text);
	a->at = m->shared_bytes;
	a->bytes = bytes;
	m->shared_bytes += (bytes + 2 * SHARED_GAP - 1) / SHARED_GAP * SHARED_GAP;
	m->n_arrays++;
	return true;
}

static bool resolve_jumps(struct ptx_parser *p)
{
	for (uint32_t j = 0; j < p->n_jumps; j++) {
		uint32_t l = 0;
		while (l < p->n_labels && strcmp(p->labels[l].name, p->jumps[j].name) != 0)
			l++;
		if (l == p->n_labels)
			return ptx_refuse(p, "no such label", p->jumps[j].name);
		p->k->code[p->jumps[j].at].target = p->labels[l].at;
	}
	p->n_jumps = p->n_labels = 0;
	free(p->jumps);
	free(p->labels);
	p->jumps = NULL;
	p->labels = NULL;
	return true;
}

static bool take_label(struct ptx_parser *p)
{
	const size_t n = strcspn(p->at, ":; \t\n");
	if (p->at[n] != ':' || n >= sizeof p->labels->name)
		return false;
	struct ptx_label *l = PTX_APPEND(p->labels, p->n_labels);
	*l = (struct ptx_label){ .at = p->k->n_code };
	memcpy(l->name, p->at, n);
	p->at += n + 1;
	return true;
}

static bool parse_statement(struct ptx_parser *p)
{
	char text[512];
	if (!take(p, ";", text, sizeof text))
		return false;
	if (ptx_begins(text, ".reg "))
		return ptx_declare_registers(p, text);
	if (ptx_begins(text, ".shared "))
		return declare_shared(p, text);
	if (ptx_begins(text, ".pragma "))
		return true;
	return *text != '.' ? ptx_decode(p, text) : ptx_refuse(p, "unknown directive", text);
}

static bool parse_body(struct ptx_parser *p)
{
	for (skip_space(p); *p->at != '}'; skip_space(p)) {
		if (!*p->at)
			return ptx_refuse(p, "ends early", p->k->name);
		if (!take_label(p) && !parse_statement(p))
			return false;
	}
	p->at++;
	const struct ptx_kernel *k = p->k;
	const struct ptx_inst *last = k->n_code ? &k->code[k->n_code - 1] : NULL;
	if (!last || last->is_guarded || (last->kind != PTX_EXIT && last->kind != PTX_BRANCH))
		return ptx_refuse(p, "its end may be passed", k->name);
	return resolve_jumps(p);
}

/* .visible .entry name( .param .align 8 .b8 name_param_0[168] ) .maxntid 256, 1, 1 { */
static bool parse_kernel(struct ptx_parser *p)
{
	char head[512];
	if (!take(p, "{", head, sizeof head))
		return false;
	struct ptx_kernel *k = p->k = PTX_APPEND(p->m->kernels, p->m->n_kernels);
	*k = (struct ptx_kernel){ .n_regs = PTX_N_SPECIAL };
	p->n_files = 0;
	if (sscanf(head,
	           ".visible .entry %63[^(]( .param .align %*u .b8 %127[^[][%u] ) .maxntid %u, 1, "
	           "1",
	           k->name, p->param, &k->param_bytes, &k->max_threads) < 3)
		return ptx_refuse(p, "not the head of a kernel with one parameter", head);
	return parse_body(p);
}

static bool parse_module(struct ptx_parser *p)
{
	char text[512];
	for (skip_space(p); *p->at; skip_space(p)) {
		bool ok = true;
		if (ptx_begins(p->at, ".visible .entry"))
			ok = parse_kernel(p);
		else if (ptx_begins(p->at, ".version") || ptx_begins(p->at, ".target") ||
		         ptx_begins(p->at, ".address_size"))
			skip_line(p);
		else if (take(p, ";", text, sizeof text))
			ok = ptx_begins(text, ".shared ") ?
			             declare_shared(p, text) :
			             ptx_refuse(p, "unknown directive", text);
		else
			return false;
		if (!ok)
			return false;
	}
	return true;
}

struct ptx_module *ptx_parse(const char *file, const char *text, struct ptx_trouble *why)
{
	struct ptx_module *m = calloc(1, sizeof *m);
	if (!m)
		return NULL;
	struct ptx_parser p = { .m = m, .why = why, .at = text, .line = 1 };
	snprintf(m->file, sizeof m->file, "%s", file);
	const bool ok = parse_module(&p);
	free(p.jumps);
	free(p.labels);
	for (uint32_t i = 0; i < m->n_kernels; i++)
		m->kernels[i].of = m;
	if (ok)
		return m;
	ptx_free(m);
	return NULL;
}

void ptx_free(struct ptx_module *m)
{
	for (uint32_t i = 0; m && i < m->n_kernels; i++) {
		free(m->kernels[i].code);
		free(m->kernels[i].constants);
	}
	if (m)
		free(m->kernels);
	free(m);
}

const struct ptx_kernel *ptx_find(const struct ptx_module *m, const char *name)
{
	for (uint32_t i = 0; i < m->n_kernels; i++)
		if (strcmp(m->kernels[i].name, name) == 0)
			return &m->kernels[i];
	return NULL;
}
