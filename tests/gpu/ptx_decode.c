/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_decode.c - one PTX instruction's text to what ptx_run.c runs: its kind, its registers,
 * constants and addresses. Whatever is not understood to the last letter is refused. */
#include "ptx_parse.h"

#include <stdio.h>

/* ---- registers and constants ---- */

static uint32_t new_register(struct ptx_parser *p, uint32_t n)
{
	p->k->n_regs += n;
	return p->k->n_regs - n;
}

/* .reg .b32 %r<17> */
bool ptx_declare_registers(struct ptx_parser *p, const char *text)
{
	static const char *const types[] = { ".pred p", ".b16 2", ".b32 4", ".f32 4", ".b64 8" };
	char type[16], prefix[16];
	unsigned n;
	if (p->n_files == PTX_FILES ||
	    sscanf(text, ".reg %15s %15[^<]<%u>", type, prefix, &n) != 3 || n > 1 << 20)
		return ptx_refuse(p, "registers", text);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		const size_t length = strlen(types[i]) - 2;
		if (strlen(type) != length || strncmp(type, types[i], length) != 0)
			continue;
		struct ptx_file *f = &p->files[p->n_files++];
		*f = (struct ptx_file){ .class = types[i][length + 1],
			                .first = new_register(p, n),
			                .n = n };
		strcpy(f->prefix, prefix);
		return true;
	}
	return ptx_refuse(p, "registers of a type that is not known here", text);
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

static bool find_register(struct ptx_parser *p, const char *name, char *class, uint32_t *out)
{
	const size_t length = strcspn(name, "0123456789");
	char *end;
	*class = '4';
	if (find_special(name, out))
		return true;
	for (uint32_t i = 0; i < p->n_files; i++) {
		const struct ptx_file *f = &p->files[i];
		if (strlen(f->prefix) != length || strncmp(f->prefix, name, length) != 0)
			continue;
		const unsigned long n = strtoul(name + length, &end, 10);
		if (*end || n >= f->n)
			break;
		*class = f->class;
		*out = f->first + (uint32_t)n;
		return true;
	}
	return ptx_refuse(p, "no such register", name);
}

static uint32_t constant(struct ptx_parser *p, uint64_t value, bool is8)
{
	struct ptx_kernel *k = p->k;
	for (uint32_t i = 0; i < k->n_constants; i++)
		if (k->constants[i].value == value && k->constants[i].is8 == is8)
			return k->constants[i].reg;
	struct ptx_constant *c = PTX_APPEND(k->constants, k->n_constants);
	*c = (struct ptx_constant){ value, new_register(p, 1), is8 };
	return c->reg;
}

static bool find_symbol(const struct ptx_parser *p, const char *name, uint64_t *value)
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
static bool find_value(struct ptx_parser *p, const char *text, uint64_t *value)
{
	char *end;
	if (find_symbol(p, text, value))
		return true;
	if (ptx_begins(text, "0f") || ptx_begins(text, "0F")) {
		*value = strtoull(text + 2, &end, 16);
		return (!*end && end == text + 10) || ptx_refuse(p, "operand", text);
	}
	*value = *text == '-' ? (uint64_t)strtoll(text, &end, 0) : strtoull(text, &end, 0);
	return (end != text && !*end) || ptx_refuse(p, "operand", text);
}

static bool operand(struct ptx_parser *p, const char *text, char class, uint32_t *out)
{
	char has;
	uint64_t value;
	if (*text == '%') {
		if (!find_register(p, text, &has, out))
			return false;
		return has == class ||
		       ptx_refuse(p, "a register of another size than its instruction's", text);
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
static bool address(struct ptx_parser *p, char *text, struct ptx_inst *i)
{
	char *plus = strchr(text, '+'), class = '8';
	const size_t n = strlen(text);
	if (n < 3 || text[0] != '[' || text[n - 1] != ']')
		return ptx_refuse(p, "address", text);
	text[n - 1] = '\0';
	if (plus) {
		char *end;
		*plus = '\0';
		i->offset = strtoll(plus + 1, &end, 0);
		if (*end || end == plus + 1)
			return ptx_refuse(p, "offset", plus + 1);
	}
	if (text[1] != '%')
		return (i->base8 = true) && operand(p, text + 1, '8', &i->base);
	if (!find_register(p, text + 1, &class, &i->base))
		return false;
	i->base8 = class == '8';
	return class == '8' || (class == '4' && i->space == PTX_SHARED) ||
	       ptx_refuse(p, "address", text);
}

static bool access_type(const char *word, struct ptx_inst *i)
{
	static const char types[][4] = { "b8", "u8", "s8", "b16", "u16", "s16", "b32",
	                                "u32", "s32", "f32", "b64", "u64", "s64" };
	for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
		if (strcmp(word, types[t]) == 0) {
			i->size = (uint8_t)(atoi(types[t] + 1) / 8);
			i->is_signed = types[t][0] == 's';
			return true;
		}
	return false;
}

/* The words of ld.volatile.global.v4.u32 behind its first. */
static bool access_words(struct ptx_parser *p, char *words, struct ptx_inst *i)
{
	i->vector = 1;
	/* also where no space is named: addresses of others are never made general */
	i->space = PTX_GLOBAL;
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
			return ptx_refuse(p, "unknown kind of access", w);
	}
	i->fold = fold && type ? ptx_fold_find(fold, type) : NULL;
	return (type && (i->kind != PTX_ATOM || i->fold)) ||
	       ptx_refuse(p, "unknown kind of access", fold ? fold : "");
}

static bool data_register(struct ptx_parser *p, const char *text, struct ptx_inst *i, uint32_t *reg)
{
	char class = i->size == 8 ? '8' : i->size == 4 ? '4' : '2';
	if (*text == '%' && !find_register(p, text, &class, reg))
		return false;
	if (class == 'p' || (class == '2' && i->size > 2) || (class == '4' && i->size > 4))
		return ptx_refuse(p, "a register smaller than its access", text);
	i->data = (uint8_t)(class - '0');
	return *text == '%' || operand(p, text, class, reg);
}

static bool parse_access(struct ptx_parser *p, char *words, char **operands, size_t n,
                         struct ptx_inst *i)
{
	if (!access_words(p, words, i))
		return false;
	const bool is_store = i->kind == PTX_STORE, is_atom = i->kind == PTX_ATOM;
	i->is_strong |= is_atom;
	if (n != (size_t)i->vector + 1 + is_atom)
		return ptx_refuse(p, "operands",
		                  "as many as its vector has, and an address, are meant");
	if (!address(p, operands[is_store ? 0 : i->vector], i))
		return false;
	for (size_t v = 0; v < i->vector; v++)
		if (!data_register(p, operands[v + is_store], i, &i->reg[v]))
			return false;
	return !is_atom || data_register(p, operands[2], i, &i->reg[1]);
}

/* ---- instructions ---- */

/* Commas part operands, braces only hold them together. */
static bool split(struct ptx_parser *p, char *text, char **operands, size_t *n)
{
	static const char gaps[] = ", {}";
	*n = 0;
	for (char *save, *w = strtok_r(text, gaps, &save); w; w = strtok_r(NULL, gaps, &save)) {
		if (*n == PTX_OPERANDS)
			return ptx_refuse(p, "too many operands", w);
		operands[(*n)++] = w;
	}
	return true;
}

static bool parse_op(struct ptx_parser *p, const char *name, char **operands, size_t n,
                     struct ptx_inst *i)
{
	static const char *const contracted[] = { "add.f32", "sub.f32", "mul.f32", "mad.f32" };
	for (size_t k = 0; k < sizeof contracted / sizeof contracted[0]; k++)
		if (strcmp(name, contracted[k]) == 0)
			return ptx_refuse(
				p, "without .rn it may become part of an fma, with other bits",
				name);
	i->op = ptx_op_find(name, n);
	if (!i->op)
		return ptx_refuse(p, "unknown instruction", name);
	for (size_t k = 0; k < n; k++)
		if (!operand(p, operands[k], i->op->classes[k], &i->reg[k]))
			return false;
	return true;
}

static bool parse_redux(struct ptx_parser *p, const char *name, char **operands, size_t n,
                        struct ptx_inst *i)
{
	char fold[8], type[8];
	if (sscanf(name, "redux.sync.%7[^.].%7s", fold, type) != 2 || n != 3 ||
	    strcmp(type + 1, "32") != 0 || !(i->fold = ptx_fold_find(fold, type)))
		return ptx_refuse(p, "unknown instruction", name);
	for (size_t k = 0; k < n; k++)
		if (!operand(p, operands[k], '4', &i->reg[k]))
			return false;
	return true;
}

static bool parse_branch(struct ptx_parser *p, char **operands, size_t n)
{
	if (n != 1 || strlen(operands[0]) >= sizeof p->jumps->name)
		return ptx_refuse(p, "branch", "its target");
	struct ptx_label *jump = PTX_APPEND(p->jumps, p->n_jumps);
	*jump = (struct ptx_label){ .at = p->k->n_code - 1 };
	strcpy(jump->name, operands[0]);
	return true;
}

static bool is_all(char **operands, size_t n)
{
	return n == 1 && strcmp(operands[0], "0") == 0;
}

static bool parse_known(struct ptx_parser *p, char *name, char **operands, size_t n,
                        struct ptx_inst *i)
{
	static const struct {
		const char *name;
		enum ptx_kind kind;
	} kinds[] = { { "ld.", PTX_LOAD },        { "st.", PTX_STORE },  { "atom.", PTX_ATOM },
		      { "redux.", PTX_REDUX },    { "bra", PTX_BRANCH }, { "ret", PTX_EXIT },
		      { "bar.sync", PTX_BARRIER } };
	for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
		if (ptx_begins(name, kinds[k].name))
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
		return (!name[3] || strcmp(name, "bra.uni") == 0) ?
		               parse_branch(p, operands, n) :
		               ptx_refuse(p, "unknown instruction", name);
	case PTX_EXIT:
		return (!name[3] && n == 0) || ptx_refuse(p, "unknown instruction", name);
	case PTX_BARRIER:
		return (!name[8] && is_all(operands, n)) ||
		       ptx_refuse(p, "a barrier of another kind than 0", name);
	}
	return false;
}

static char *take_guard(struct ptx_parser *p, char *text, struct ptx_inst *i)
{
	char *end = strchr(text, ' ');
	if (*text != '@' || !end)
		return text;
	*end = '\0';
	i->unless = text[1] == '!';
	i->is_guarded = operand(p, text + 1 + i->unless, 'p', &i->guard);
	return i->is_guarded ? end + 1 : NULL;
}

bool ptx_decode(struct ptx_parser *p, char *text)
{
	struct ptx_inst *i = PTX_APPEND(p->k->code, p->k->n_code);
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
	       ptx_refuse(p, "guarded", name);
}
