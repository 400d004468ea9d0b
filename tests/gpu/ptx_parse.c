/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_parse.c - PTX text to instructions. Modules are what nvcc writes for lib/gpu/kernels/: kernels of one
 * parameter, static shared memory, neither functions nor memory of their own. Anything else is refused. */
#include "ptx.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 128, MOST_FILES = 16, SHARED_GAP = 256 };

struct file { /* of registers: %r<17> */
	char prefix[16];
	char class;
	uint32_t first, n;
};

struct label {
	char name[64];
	uint32_t at;
};

struct parser {
	struct ptx_module *m;
	struct ptx_kernel *k;
	struct ptx_trouble *why;
	const char *at;
	uint32_t line;
	char param[NAME];
	struct file files[MOST_FILES];
	uint32_t n_files;
	struct label *labels;
	struct { uint32_t code; char name[64]; } *jumps;
	uint32_t n_labels, n_jumps;
};

void ptx_complain(struct ptx_trouble *t, const char *fmt, ...)
{
	if (t->text[0])
		return;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(t->text, sizeof t->text, fmt, ap);
	va_end(ap);
}

static bool refuse(struct parser *p, const char *what, const char *which)
{
	ptx_complain(p->why, "%s:%u: %s: %.100s", p->m->file, p->line, what, which);
	return false;
}

/* Room for one more. An array grows by doubling, its length tells when. NULL: it cannot. */
static void *grow(void *array, uint32_t n, size_t size)
{
	if (n & (n - 1))
		return array;
	void *more = realloc(array, (n ? 2 * (size_t)n : 1) * size);
	if (more)
		memset((char *)more + n * size, 0, (n ? n : 1) * size);
	return more;
}

#define APPEND(array, n) ((array) = grow_or_die(array, n, sizeof *(array)), &(array)[(n)++])
static void *grow_or_die(void *array, uint32_t n, size_t size)
{
	void *more = grow(array, n, size);
	if (!more)
		abort();
	return more;
}

/* ---- text ---- */

static void skip_space(struct parser *p)
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
static bool take(struct parser *p, const char *ends, char *out, size_t size)
{
	size_t n = 0;
	while (*p->at && !strchr(ends, *p->at)) {
		const char *before = p->at;
		if (n + 2 > size)
			return refuse(p, "too long", "a statement");
		skip_space(p);
		if (p->at == before)
			out[n++] = *p->at++;
		else if (n && out[n - 1] != ' ')
			out[n++] = ' ';
	}
	out[n && out[n - 1] == ' ' ? n - 1 : n] = '\0';
	if (!*p->at)
		return refuse(p, "ends early", out);
	p->at++;
	return true;
}

static void skip_line(struct parser *p)
{
	p->at += strcspn(p->at, "\n");
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* ---- registers and constants ---- */

static uint32_t new_register(struct parser *p, uint32_t n)
{
	p->k->n_regs += n;
	return p->k->n_regs - n;
}

/* .reg .b32 %r<17> */
static bool declare_registers(struct parser *p, const char *text)
{
	static const char *const types[] = { ".pred p", ".b16 2", ".b32 4", ".f32 4", ".b64 8" };
	char type[16], prefix[16];
	unsigned n;
	if (p->n_files == MOST_FILES || sscanf(text, ".reg %15s %15[^<]<%u>", type, prefix, &n) != 3 || n > 1 << 20)
		return refuse(p, "registers", text);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		const size_t length = strlen(types[i]) - 2;
		if (strlen(type) != length || strncmp(type, types[i], length) != 0)
			continue;
		struct file *f = &p->files[p->n_files++];
		*f = (struct file){ .class = types[i][length + 1], .first = new_register(p, n), .n = n };
		strcpy(f->prefix, prefix);
		return true;
	}
	return refuse(p, "registers of a type that is not known here", text);
}

static bool find_special(const char *name, uint32_t *out)
{
	static const char *const names[] = { [PTX_TID] = "%tid.x", [PTX_NTID] = "%ntid.x",
		                             [PTX_CTAID] = "%ctaid.x", [PTX_NCTAID] = "%nctaid.x",
		                             [PTX_LANEID] = "%laneid" };
	for (uint32_t i = 0; i < PTX_N_SPECIAL; i++)
		if (strcmp(name, names[i]) == 0) {
			*out = i;
			return true;
		}
	return false;
}

static bool find_register(struct parser *p, const char *name, char *class, uint32_t *out)
{
	const size_t length = strcspn(name, "0123456789");
	char *end;
	*class = '4';
	if (find_special(name, out))
		return true;
	for (uint32_t i = 0; i < p->n_files; i++) {
		const struct file *f = &p->files[i];
		if (strlen(f->prefix) != length || strncmp(f->prefix, name, length) != 0)
			continue;
		const unsigned long n = strtoul(name + length, &end, 10);
		if (*end || n >= f->n)
			break;
		*class = f->class;
		*out = f->first + (uint32_t)n;
		return true;
	}
	return refuse(p, "no such register", name);
}

static uint32_t constant(struct parser *p, uint64_t value, bool is8)
{
	struct ptx_kernel *k = p->k;
	for (uint32_t i = 0; i < k->n_constants; i++)
		if (k->constants[i].value == value && k->constants[i].is8 == is8)
			return k->constants[i].reg;
	struct ptx_constant *c = APPEND(k->constants, k->n_constants);
	*c = (struct ptx_constant){ value, new_register(p, 1), is8 };
	return c->reg;
}

static bool find_symbol(const struct parser *p, const char *name, uint64_t *value)
{
	*value = 0;
	if (strcmp(name, p->param) == 0)
		return true;
	for (uint32_t i = 0; i < p->m->n_arrays; i++)
		if (strcmp(name, p->m->arrays[i].name) == 0) {
			*value = p->m->arrays[i].at;
			return true;
		}
	return false;
}

/* 17, -1, 0x7f, 0f3F800000 (the bits of a float), an array of shared memory, the parameter */
static bool find_value(struct parser *p, const char *text, uint64_t *value)
{
	char *end;
	if (find_symbol(p, text, value))
		return true;
	if (begins(text, "0f") || begins(text, "0F")) {
		*value = strtoull(text + 2, &end, 16);
		return (!*end && end == text + 10) || refuse(p, "operand", text);
	}
	*value = *text == '-' ? (uint64_t)strtoll(text, &end, 0) : strtoull(text, &end, 0);
	return (end != text && !*end) || refuse(p, "operand", text);
}

static bool operand(struct parser *p, const char *text, char class, uint32_t *out)
{
	char has;
	uint64_t value;
	if (*text == '%') {
		if (!find_register(p, text, &has, out))
			return false;
		return has == class || refuse(p, "a register of another size than its instruction's", text);
	}
	if (!find_value(p, text, &value))
		return false;
	if (class == 'p')
		value &= 1;
	else if (class != '8')
		value &= class == '2' ? 0xffff : UINT32_MAX;
	*out = constant(p, value, class == '8');
	return true;
}

/* ---- memory ---- */

/* [%rd1+-32], [symbol+8], [symbol] */
static bool address(struct parser *p, char *text, struct ptx_inst *i)
{
	char *plus = strchr(text, '+'), class = '8';
	const size_t n = strlen(text);
	if (n < 3 || text[0] != '[' || text[n - 1] != ']')
		return refuse(p, "address", text);
	text[n - 1] = '\0';
	if (plus) {
		char *end;
		*plus = '\0';
		i->offset = strtoll(plus + 1, &end, 0);
		if (*end || end == plus + 1)
			return refuse(p, "offset", plus + 1);
	}
	if (text[1] != '%')
		return (i->base8 = true) && operand(p, text + 1, '8', &i->base);
	if (!find_register(p, text + 1, &class, &i->base))
		return false;
	i->base8 = class == '8';
	return class == '8' || (class == '4' && i->space == PTX_SHARED) || refuse(p, "address", text);
}

static bool access_type(const char *word, struct ptx_inst *i)
{
	static const char types[][4] = { "b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64" };
	for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
		if (strcmp(word, types[t]) == 0) {
			i->size = (uint8_t)(atoi(types[t] + 1) / 8);
			i->is_signed = types[t][0] == 's';
			return true;
		}
	return false;
}

/* The words of ld.volatile.global.v4.u32 behind its first. */
static bool access_words(struct parser *p, char *words, struct ptx_inst *i)
{
	i->vector = 1;
	i->space = PTX_GLOBAL; /* also where no space is named: addresses of others are never made general */
	const char *fold = NULL, *type = NULL;
	for (char *save, *w = strtok_r(words, ".", &save); w; w = strtok_r(NULL, ".", &save)) {
		if (strcmp(w, "param") == 0 && i->kind == PTX_LOAD)
			i->space = PTX_PARAM;
		else if (strcmp(w, "shared") == 0)
			i->space = PTX_SHARED;
		else if (strcmp(w, "v2") == 0 || strcmp(w, "v4") == 0)
			i->vector = (uint8_t)(w[1] - '0');
		else if (strcmp(w, "volatile") == 0)
			i->is_strong = true;
		else if (access_type(w, i))
			type = w;
		else if (i->kind == PTX_ATOM && !fold && strcmp(w, "global") != 0)
			fold = w;
		else if (strcmp(w, "global") != 0 && strcmp(w, "nc") != 0)
			return refuse(p, "unknown kind of access", w);
	}
	i->fold = fold && type ? ptx_fold_find(fold, type) : NULL;
	return (type && (i->kind != PTX_ATOM || i->fold)) || refuse(p, "unknown kind of access", fold ? fold : "");
}

static bool data_register(struct parser *p, const char *text, struct ptx_inst *i, uint32_t *reg)
{
	char class = i->size == 8 ? '8' : i->size == 4 ? '4' : '2';
	if (*text == '%' && !find_register(p, text, &class, reg))
		return false;
	if (class == 'p' || (class == '2' && i->size > 2) || (class == '4' && i->size > 4))
		return refuse(p, "a register smaller than its access", text);
	i->data = (uint8_t)(class - '0');
	return *text == '%' || operand(p, text, class, reg);
}

static bool parse_access(struct parser *p, char *words, char **operands, size_t n, struct ptx_inst *i)
{
	if (!access_words(p, words, i))
		return false;
	const bool is_store = i->kind == PTX_STORE, is_atom = i->kind == PTX_ATOM;
	i->is_strong |= is_atom;
	if (n != (size_t)i->vector + 1 + is_atom)
		return refuse(p, "operands", operands[0]);
	if (!address(p, operands[is_store ? 0 : i->vector], i))
		return false;
	for (size_t v = 0; v < i->vector; v++)
		if (!data_register(p, operands[v + is_store], i, &i->reg[v]))
			return false;
	return !is_atom || data_register(p, operands[2], i, &i->reg[1]);
}

/* ---- instructions ---- */

/* Commas part operands, braces only hold them together. */
static bool split(struct parser *p, char *text, char **operands, size_t *n)
{
	static const char gaps[] = ", {}";
	*n = 0;
	for (char *save, *w = strtok_r(text, gaps, &save); w; w = strtok_r(NULL, gaps, &save)) {
		if (*n == PTX_OPERANDS)
			return refuse(p, "too many operands", w);
		operands[(*n)++] = w;
	}
	return true;
}

static bool parse_op(struct parser *p, const char *name, char **operands, size_t n, struct ptx_inst *i)
{
	static const char *const contracted[] = { "add.f32", "sub.f32", "mul.f32", "mad.f32" };
	for (size_t k = 0; k < sizeof contracted / sizeof contracted[0]; k++)
		if (strcmp(name, contracted[k]) == 0)
			return refuse(p, "without .rn it may become part of an fma, with other bits", name);
	i->op = ptx_op_find(name, n);
	if (!i->op)
		return refuse(p, "unknown instruction", name);
	for (size_t k = 0; k < n; k++)
		if (!operand(p, operands[k], i->op->classes[k], &i->reg[k]))
			return false;
	return true;
}

static bool parse_redux(struct parser *p, const char *name, char **operands, size_t n, struct ptx_inst *i)
{
	char fold[8], type[8];
	if (sscanf(name, "redux.sync.%7[^.].%7s", fold, type) != 2 || n != 3 || strcmp(type + 1, "32") != 0 ||
	    !(i->fold = ptx_fold_find(fold, type)))
		return refuse(p, "unknown instruction", name);
	for (size_t k = 0; k < n; k++)
		if (!operand(p, operands[k], '4', &i->reg[k]))
			return false;
	return true;
}

static bool parse_branch(struct parser *p, char **operands, size_t n)
{
	if (n != 1 || strlen(operands[0]) >= sizeof p->jumps[0].name)
		return refuse(p, "branch", "its target");
	strcpy(APPEND(p->jumps, p->n_jumps)->name, operands[0]);
	p->jumps[p->n_jumps - 1].code = p->k->n_code - 1;
	return true;
}

static bool is_all(char **operands, size_t n)
{
	return n == 1 && strcmp(operands[0], "0") == 0;
}

static bool parse_known(struct parser *p, char *name, char **operands, size_t n, struct ptx_inst *i)
{
	static const struct {
		const char *name;
		enum ptx_kind kind;
	} kinds[] = { { "ld.", PTX_LOAD },   { "st.", PTX_STORE }, { "atom.", PTX_ATOM },     { "redux.", PTX_REDUX },
		      { "bra", PTX_BRANCH }, { "ret", PTX_EXIT },  { "bar.sync", PTX_BARRIER } };
	for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
		if (begins(name, kinds[k].name))
			i->kind = kinds[k].kind;
	switch (i->kind) {
	case PTX_OP:
		return parse_op(p, name, operands, n, i);
	case PTX_LOAD:
	case PTX_STORE:
	case PTX_ATOM:
		return parse_access(p, strchr(name, '.') + 1, operands, n, i);
	case PTX_REDUX:
		return parse_redux(p, name, operands, n, i);
	case PTX_BRANCH:
		return (!name[3] || strcmp(name, "bra.uni") == 0) ? parse_branch(p, operands, n) :
		                                                     refuse(p, "unknown instruction", name);
	case PTX_EXIT:
		return (!name[3] && n == 0) || refuse(p, "unknown instruction", name);
	case PTX_BARRIER:
		return (!name[8] && is_all(operands, n)) || refuse(p, "a barrier of another kind than 0", name);
	}
	return false;
}

static char *take_guard(struct parser *p, char *text, struct ptx_inst *i)
{
	char *end = strchr(text, ' ');
	if (*text != '@' || !end)
		return text;
	*end = '\0';
	i->unless = text[1] == '!';
	i->is_guarded = operand(p, text + 1 + i->unless, 'p', &i->guard);
	return i->is_guarded ? end + 1 : NULL;
}

static bool parse_instruction(struct parser *p, char *text)
{
	struct ptx_inst *i = APPEND(p->k->code, p->k->n_code);
	char *operands[PTX_OPERANDS];
	size_t n;
	*i = (struct ptx_inst){ .line = p->line };
	char *name = take_guard(p, text, i);
	if (!name)
		return false;
	char *rest = name + strcspn(name, " ");
	if (*rest)
		*rest++ = '\0';
	if (!split(p, rest, operands, &n) || !parse_known(p, name, operands, n, i))
		return false;
	return !i->is_guarded || (i->kind != PTX_BARRIER && i->kind != PTX_REDUX) ||
	       refuse(p, "guarded", name);
}

/* ---- kernels ---- */

/* .shared .align 4 .b8 name[32]. Arrays lie apart, so that who leaves one does not come into the next. */
static bool declare_shared(struct parser *p, const char *text)
{
	struct ptx_module *m = p->m;
	unsigned align, bytes;
	struct ptx_array *a = &m->arrays[m->n_arrays];
	if (m->n_arrays == PTX_ARRAYS ||
	    sscanf(text, ".shared .align %u .b8 %127[^[][%u]", &align, a->name, &bytes) != 3 || align > SHARED_GAP ||
	    bytes > 1 << 20)
		return refuse(p, "shared memory", text);
	a->at = m->shared_bytes;
	a->bytes = bytes;
	m->shared_bytes += (bytes + 2 * SHARED_GAP - 1) / SHARED_GAP * SHARED_GAP;
	m->n_arrays++;
	return true;
}

static bool resolve_jumps(struct parser *p)
{
	for (uint32_t j = 0; j < p->n_jumps; j++) {
		uint32_t l = 0;
		while (l < p->n_labels && strcmp(p->labels[l].name, p->jumps[j].name) != 0)
			l++;
		if (l == p->n_labels)
			return refuse(p, "no such label", p->jumps[j].name);
		p->k->code[p->jumps[j].code].target = p->labels[l].at;
	}
	p->n_jumps = p->n_labels = 0;
	free(p->jumps);
	free(p->labels);
	p->jumps = NULL;
	p->labels = NULL;
	return true;
}

static bool take_label(struct parser *p)
{
	const size_t n = strcspn(p->at, ":; \t\n");
	struct label *l;
	if (p->at[n] != ':' || n >= sizeof l->name)
		return false;
	l = APPEND(p->labels, p->n_labels);
	memcpy(l->name, p->at, n);
	l->at = p->k->n_code;
	p->at += n + 1;
	return true;
}

static bool parse_statement(struct parser *p)
{
	char text[512];
	if (!take(p, ";", text, sizeof text))
		return false;
	if (begins(text, ".reg "))
		return declare_registers(p, text);
	if (begins(text, ".shared "))
		return declare_shared(p, text);
	if (begins(text, ".pragma "))
		return true;
	return *text != '.' ? parse_instruction(p, text) : refuse(p, "unknown directive", text);
}

static bool parse_body(struct parser *p)
{
	for (skip_space(p); *p->at != '}'; skip_space(p)) {
		if (!*p->at)
			return refuse(p, "ends early", p->k->name);
		if (!take_label(p) && !parse_statement(p))
			return false;
	}
	p->at++;
	const struct ptx_kernel *k = p->k;
	const struct ptx_inst *last = k->n_code ? &k->code[k->n_code - 1] : NULL;
	if (!last || last->is_guarded || (last->kind != PTX_EXIT && last->kind != PTX_BRANCH))
		return refuse(p, "its end may be passed", k->name);
	return resolve_jumps(p);
}

/* .visible .entry name( .param .align 8 .b8 name_param_0[168] ) .maxntid 256, 1, 1 { */
static bool parse_kernel(struct parser *p)
{
	char head[512];
	if (!take(p, "{", head, sizeof head))
		return false;
	struct ptx_kernel *k = p->k = APPEND(p->m->kernels, p->m->n_kernels);
	*k = (struct ptx_kernel){ .n_regs = PTX_N_SPECIAL };
	p->n_files = 0;
	if (sscanf(head, ".visible .entry %63[^(]( .param .align %*u .b8 %127[^[][%u] ) .maxntid %u, 1, 1", k->name,
	           p->param, &k->param_bytes, &k->max_threads) < 3)
		return refuse(p, "not the head of a kernel with one parameter", head);
	return parse_body(p);
}

static bool parse_module(struct parser *p)
{
	char text[512];
	for (skip_space(p); *p->at; skip_space(p)) {
		bool ok = true;
		if (begins(p->at, ".visible .entry"))
			ok = parse_kernel(p);
		else if (begins(p->at, ".version") || begins(p->at, ".target") || begins(p->at, ".address_size"))
			skip_line(p);
		else if (take(p, ";", text, sizeof text))
			ok = begins(text, ".shared ") ? declare_shared(p, text) : refuse(p, "unknown directive", text);
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
	struct parser p = { .m = m, .why = why, .at = text, .line = 1 };
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
