/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_machine.c - opcodes of protocols 2 to 5, those that Python writes for plain data, classes by
 * name, and torch's persistent ids. */
#include "pickle_machine.h"

#include "wsync/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 21 }; /* of anything */

/* Enough for a bucket of tensors and for what torch.save says of one; dtypes and storages are torch's. */
static const struct {
	const char *module, *name; /* NULL: any */
} allowed[] = {
	{ "torch", NULL },
	{ "torch._utils", "_rebuild_tensor_v2" },
	{ "torch.storage", "_load_from_bytes" },
	{ "torch.storage", "UntypedStorage" },
	{ "torch.storage", "TypedStorage" },
	{ "torch.nn.parameter", "Parameter" },
	{ "torch.multiprocessing.reductions", "rebuild_cuda_tensor" },
	{ "sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified" },
	{ "collections", "OrderedDict" },
	{ "sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata" },
	{ "sglang.srt.model_executor.model_runner", "FlattenedTensorMetadata" },
};

static int fail(const struct pickle *p, const char *why, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "pickle: %s, at byte %zu", why, p->at);
}

/* ---- memory ---- */

static void *push(struct pickle *p, struct pickle_vector *v, size_t size, struct ws_err *err)
{
	if (v->n == v->cap) {
		const size_t cap = v->cap ? v->cap * 2 : 64;
		void *more = v->n < MOST ? realloc(v->items, cap * size) : NULL;
		if (!more) {
			fail(p, "more values than are taken", err);
			return NULL;
		}
		v->items = more;
		v->cap = cap;
	}
	return (char *)v->items + v->n++ * size;
}

static int push_index(struct pickle *p, struct pickle_vector *v, uint32_t value, struct ws_err *err)
{
	uint32_t *top = push(p, v, sizeof *top, err);
	if (!top)
		return -1;
	*top = value;
	return 0;
}

static struct pickle_value *value_at(const struct pickle *p, uint32_t i)
{
	return &((struct pickle_value *)p->values.items)[i];
}

/* A new value, on top of the stack. */
static struct pickle_value *push_value(struct pickle *p, enum pickle_kind kind, struct ws_err *err)
{
	const size_t i = p->values.n;
	struct pickle_value *v = push(p, &p->values, sizeof *v, err);
	if (!v || push_index(p, &p->stack, (uint32_t)i, err))
		return NULL;
	*v = (struct pickle_value){ .kind = kind, .first = PICKLE_NOTHING, .last = PICKLE_NOTHING };
	return v;
}

static int add_child(struct pickle *p, uint32_t parent, uint32_t child, struct ws_err *err)
{
	const uint32_t i = (uint32_t)p->cells.n;
	struct pickle_cell *cell = push(p, &p->cells, sizeof *cell, err);
	if (!cell)
		return -1;
	*cell = (struct pickle_cell){ child, PICKLE_NOTHING };
	struct pickle_value *v = value_at(p, parent);
	if (v->n++ == 0)
		v->first = i;
	else
		((struct pickle_cell *)p->cells.items)[v->last].next = i;
	v->last = i;
	return 0;
}

/* ---- the program's bytes ---- */

static int take(struct pickle *p, size_t n, const uint8_t **out, struct ws_err *err)
{
	if (n > p->len - p->at)
		return fail(p, "cut short", err);
	*out = p->data + p->at;
	p->at += n;
	return 0;
}

static int take_number(struct pickle *p, unsigned bytes, uint64_t *out, struct ws_err *err)
{
	const uint8_t *at = NULL;
	if (take(p, bytes, &at, err))
		return -1;
	*out = 0;
	for (unsigned i = 0; i < bytes; i++)
		*out |= (uint64_t)at[i] << 8 * i;
	return 0;
}

static int take_line(struct pickle *p, const char **text, size_t *len, struct ws_err *err)
{
	const uint8_t *at = p->data + p->at;
	const uint8_t *end = memchr(at, '\n', p->len - p->at);
	if (!end)
		return fail(p, "cut short", err);
	*text = (const char *)at;
	*len = (size_t)(end - at);
	p->at += *len + 1;
	return 0;
}

/* ---- the stack ---- */

static size_t floor_of(const struct pickle *p)
{
	return p->marks.n ? ((const uint32_t *)p->marks.items)[p->marks.n - 1] : 0;
}

/* The last n values above the mark, the first of them. */
static const uint32_t *top(struct pickle *p, size_t n, struct ws_err *err)
{
	if (p->stack.n - floor_of(p) < n) {
		fail(p, "takes from an empty stack", err);
		return NULL;
	}
	return (const uint32_t *)p->stack.items + p->stack.n - n;
}

/* Ends the latest mark; how many values lie above it. */
static int unmark(struct pickle *p, size_t *n, struct ws_err *err)
{
	if (!p->marks.n)
		return fail(p, "no mark", err);
	*n = p->stack.n - floor_of(p);
	p->marks.n--;
	return 0;
}

/* The topmost n values become children of a new one. */
static int wrap(struct pickle *p, enum pickle_kind kind, size_t n, struct ws_err *err)
{
	if (n && !top(p, n, err))
		return -1;
	const size_t base = p->stack.n - n;
	if (!push_value(p, kind, err))
		return -1;
	const uint32_t made = ((uint32_t *)p->stack.items)[p->stack.n - 1];
	for (size_t i = 0; i < n; i++)
		if (add_child(p, made, ((uint32_t *)p->stack.items)[base + i], err))
			return -1;
	((uint32_t *)p->stack.items)[base] = made;
	p->stack.n = base + 1;
	return 0;
}

/* The topmost n values go into the container under them. */
static int put_in(struct pickle *p, enum pickle_kind kind, size_t n, struct ws_err *err)
{
	const uint32_t *from = top(p, n + 1, err);
	if (!from)
		return -1;
	const uint32_t parent = from[0];
	if (value_at(p, parent)->kind != kind || (kind == PICKLE_DICT && n % 2))
		return fail(p, "adds to what cannot hold it", err);
	for (size_t i = 1; i <= n; i++)
		if (add_child(p, parent, ((uint32_t *)p->stack.items)[p->stack.n - n + i - 1], err))
			return -1;
	p->stack.n -= n;
	return 0;
}

static int put_in_marked(struct pickle *p, enum pickle_kind kind, struct ws_err *err)
{
	size_t n = 0;
	return unmark(p, &n, err) ? -1 : put_in(p, kind, n, err);
}

static int wrap_marked(struct pickle *p, struct ws_err *err)
{
	size_t n = 0;
	return unmark(p, &n, err) ? -1 : wrap(p, PICKLE_TUPLE, n, err);
}

/* ---- the memo ---- */

static int remember(struct pickle *p, uint64_t place, struct ws_err *err)
{
	const uint32_t *v = top(p, 1, err);
	if (!v)
		return -1;
	/* Python numbers them from 0 on; whoever leaves gaps leaves few. */
	if (place > p->memo.n + 1000)
		return fail(p, "a memo of odd numbers", err);
	while (p->memo.n <= place)
		if (push_index(p, &p->memo, PICKLE_NOTHING, err))
			return -1;
	((uint32_t *)p->memo.items)[place] = *v;
	return 0;
}

static int recall(struct pickle *p, uint64_t place, struct ws_err *err)
{
	if (place >= p->memo.n || ((uint32_t *)p->memo.items)[place] == PICKLE_NOTHING)
		return fail(p, "recalls what was never remembered", err);
	return push_index(p, &p->stack, ((uint32_t *)p->memo.items)[place], err);
}

/* ---- values ---- */

static int push_int(struct pickle *p, enum pickle_kind kind, int64_t integer, struct ws_err *err)
{
	struct pickle_value *v = push_value(p, kind, err);
	if (v)
		v->integer = integer;
	return v ? 0 : -1;
}

static int push_number(struct pickle *p, unsigned bytes, struct ws_err *err)
{
	uint64_t n = 0;
	if (take_number(p, bytes, &n, err))
		return -1;
	return push_int(p, PICKLE_INT, bytes == 4 ? (int32_t)(uint32_t)n : (int64_t)n, err);
}

static int push_long(struct pickle *p, struct ws_err *err)
{
	uint64_t len = 0, n = 0;
	const uint8_t *at = NULL;
	if (take_number(p, 1, &len, err))
		return -1;
	if (len <= 8) {
		if (take_number(p, (unsigned)len, &n, err))
			return -1;
		if (len && len < 8 && n >> (8 * len - 1) & 1)
			n |= UINT64_MAX << 8 * len;
		return push_int(p, PICKLE_INT, (int64_t)n, err);
	}
	if (take(p, (size_t)len, &at, err))
		return -1;
	struct pickle_value *v = push_value(p, PICKLE_BIG, err);
	if (!v)
		return -1;
	v->text = (const char *)at;
	v->len = (size_t)len;
	return 0;
}

static int push_text(struct pickle *p, enum pickle_kind kind, unsigned length_bytes, struct ws_err *err)
{
	uint64_t n = 0;
	const uint8_t *at = NULL;
	if (take_number(p, length_bytes, &n, err))
		return -1;
	if (n > p->len - p->at)
		return fail(p, "cut short", err);
	if (take(p, (size_t)n, &at, err))
		return -1;
	struct pickle_value *v = push_value(p, kind, err);
	if (!v)
		return -1;
	v->text = (const char *)at;
	v->len = (size_t)n;
	return 0;
}

static bool same(const char *text, size_t len, const char *word)
{
	return len == strlen(word) && memcmp(text, word, len) == 0;
}

static int push_global(struct pickle *p, const char *module, size_t module_len, const char *name,
                       size_t name_len, struct ws_err *err)
{
	size_t i = 0;
	const size_t n = sizeof allowed / sizeof allowed[0];
	while (i < n && (!same(module, module_len, allowed[i].module) ||
	                 (allowed[i].name && !same(name, name_len, allowed[i].name))))
		i++;
	if (i == n) {
		char shown[2][80];
		ws_printable(shown[0], sizeof shown[0], module, module_len);
		ws_printable(shown[1], sizeof shown[1], name, name_len);
		return ws_err_set(err, WS_EINPUT, "Blocked unsafe class loading (%s.%s), to prevent "
		                  "exploitation of CVE-2025-10164", shown[0], shown[1]);
	}
	struct pickle_value *v = push_value(p, PICKLE_GLOBAL, err);
	if (!v)
		return -1;
	v->text = module;
	v->len = module_len;
	v->name = name;
	v->name_len = name_len;
	return 0;
}

static int read_global(struct pickle *p, struct ws_err *err)
{
	const char *module = NULL, *name = NULL;
	size_t m = 0, n = 0;
	if (take_line(p, &module, &m, err) || take_line(p, &name, &n, err))
		return -1;
	return push_global(p, module, m, name, n, err);
}

static int stack_global(struct pickle *p, struct ws_err *err)
{
	const uint32_t *two = top(p, 2, err);
	if (!two)
		return -1;
	const struct pickle_value module = *value_at(p, two[0]), name = *value_at(p, two[1]);
	if (module.kind != PICKLE_STR || name.kind != PICKLE_STR)
		return fail(p, "a global without a name", err);
	p->stack.n -= 2;
	return push_global(p, module.text, module.len, name.text, name.len, err);
}

/* What is called must be a name; an ordered dictionary of nothing is the only one that is made. */
static int call(struct pickle *p, enum pickle_kind kind, struct ws_err *err)
{
	const uint32_t *two = top(p, 2, err);
	if (!two)
		return -1;
	if (value_at(p, two[0])->kind != PICKLE_GLOBAL || value_at(p, two[1])->kind != PICKLE_TUPLE)
		return fail(p, "calls what is no function", err);
	if (kind == PICKLE_CALL)
		return wrap(p, PICKLE_CALL, 2, err);
	if (value_at(p, two[1])->n)
		return fail(p, "makes an object of arguments", err);
	p->stack.n--;
	return wrap(p, PICKLE_OBJECT, 1, err);
}

static int build(struct pickle *p, struct ws_err *err)
{
	const uint32_t *two = top(p, 2, err);
	if (!two)
		return -1;
	if (value_at(p, two[0])->kind != PICKLE_OBJECT || value_at(p, two[0])->n != 1)
		return fail(p, "fills in what is no new object", err);
	return put_in(p, PICKLE_OBJECT, 1, err);
}

static int drop(struct pickle *p, struct ws_err *err)
{
	if (!top(p, 1, err))
		return -1;
	p->stack.n--;
	return 0;
}

static int skip(struct pickle *p, size_t n, struct ws_err *err)
{
	const uint8_t *unused = NULL;
	return take(p, n, &unused, err);
}

static int memo_op(struct pickle *p, int (*what)(struct pickle *, uint64_t, struct ws_err *),
                   unsigned bytes, struct ws_err *err)
{
	uint64_t place = 0;
	return take_number(p, bytes, &place, err) ? -1 : what(p, place, err);
}

static int step(struct pickle *p, uint8_t op, struct ws_err *err)
{
	switch (op) {
	case 0x80: return skip(p, 1, err); /* PROTO */
	case 0x95: return skip(p, 8, err); /* FRAME */
	case '(': return push_index(p, &p->marks, (uint32_t)p->stack.n, err);
	case '0': return drop(p, err);
	case 'N': return push_int(p, PICKLE_NONE, 0, err);
	case 0x88: return push_int(p, PICKLE_BOOL, 1, err);
	case 0x89: return push_int(p, PICKLE_BOOL, 0, err);
	case 'J': return push_number(p, 4, err);
	case 'M': return push_number(p, 2, err);
	case 'K': return push_number(p, 1, err);
	case 0x8a: return push_long(p, err);
	case 'X': return push_text(p, PICKLE_STR, 4, err);
	case 0x8c: return push_text(p, PICKLE_STR, 1, err);
	case 0x8d: return push_text(p, PICKLE_STR, 8, err);
	case 'B': return push_text(p, PICKLE_BYTES, 4, err);
	case 'C': return push_text(p, PICKLE_BYTES, 1, err);
	case 0x8e: return push_text(p, PICKLE_BYTES, 8, err);
	case 'c': return read_global(p, err);
	case 0x93: return stack_global(p, err);
	case ')': return wrap(p, PICKLE_TUPLE, 0, err);
	case 0x85: return wrap(p, PICKLE_TUPLE, 1, err);
	case 0x86: return wrap(p, PICKLE_TUPLE, 2, err);
	case 0x87: return wrap(p, PICKLE_TUPLE, 3, err);
	case 't': return wrap_marked(p, err);
	case ']': return wrap(p, PICKLE_LIST, 0, err);
	case 'a': return put_in(p, PICKLE_LIST, 1, err);
	case 'e': return put_in_marked(p, PICKLE_LIST, err);
	case '}': return wrap(p, PICKLE_DICT, 0, err);
	case 's': return put_in(p, PICKLE_DICT, 2, err);
	case 'u': return put_in_marked(p, PICKLE_DICT, err);
	case 'q': return memo_op(p, remember, 1, err);
	case 'r': return memo_op(p, remember, 4, err);
	case 'h': return memo_op(p, recall, 1, err);
	case 'j': return memo_op(p, recall, 4, err);
	case 0x94: return remember(p, p->memo.n, err); /* MEMOIZE */
	case 'R': return call(p, PICKLE_CALL, err);
	case 0x81: return call(p, PICKLE_OBJECT, err); /* NEWOBJ */
	case 'b': return build(p, err);
	case 'Q': return wrap(p, PICKLE_PERSISTENT, 1, err);
	default: return fail(p, "an opcode that is not known here", err);
	}
}

int pickle_run(struct pickle *p, const void *data, size_t len, struct ws_err *err)
{
	*p = (struct pickle){ .data = data, .len = len };
	for (;;) {
		const uint8_t *op = NULL;
		if (take(p, 1, &op, err))
			return -1;
		if (*op == '.')
			break;
		if (step(p, *op, err))
			return -1;
	}
	const uint32_t *result = p->marks.n ? NULL : top(p, 1, err);
	if (!result)
		return fail(p, "ends without a value", err);
	p->result = *result;
	return 0;
}

void pickle_close(struct pickle *p)
{
	free(p->values.items);
	free(p->cells.items);
	free(p->stack.items);
	free(p->marks.items);
	free(p->memo.items);
	*p = (struct pickle){ 0 };
}

/* ---- looking at what came of it ---- */

const struct pickle_value *pickle_at(const struct pickle *p, uint32_t value)
{
	return value_at(p, value);
}

const struct pickle_value *pickle_child(const struct pickle *p, const struct pickle_value *v, uint32_t i)
{
	uint32_t at = v && i < v->n ? v->first : PICKLE_NOTHING;
	const struct pickle_cell *cells = p->cells.items;
	while (at != PICKLE_NOTHING && i--)
		at = cells[at].next;
	return at == PICKLE_NOTHING ? NULL : value_at(p, cells[at].value);
}

const struct pickle_value *pickle_get(const struct pickle *p, const struct pickle_value *v, const char *key)
{
	enum { FEW = 64 }; /* cells of a dictionary that is asked often */
	if (!v || v->kind != PICKLE_DICT || v->n > FEW)
		return NULL;
	const struct pickle_cell *cells = p->cells.items;
	for (uint32_t at = v->first; at != PICKLE_NOTHING; at = cells[cells[at].next].next)
		if (pickle_is_str(value_at(p, cells[at].value), key))
			return value_at(p, cells[cells[at].next].value);
	return NULL;
}

bool pickle_is_str(const struct pickle_value *v, const char *text)
{
	return v && v->kind == PICKLE_STR && same(v->text, v->len, text);
}

bool pickle_is_global(const struct pickle_value *v, const char *module, const char *name)
{
	return v && v->kind == PICKLE_GLOBAL && same(v->text, v->len, module) &&
	       same(v->name, v->name_len, name);
}

const struct pickle_value *pickle_call_of(const struct pickle *p, const struct pickle_value *v,
                                          const char *module, const char *name)
{
	if (!v || v->kind != PICKLE_CALL || !pickle_is_global(pickle_child(p, v, 0), module, name))
		return NULL;
	return pickle_child(p, v, 1);
}
