/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_machine.c - the opcodes of protocols 2 to 5 that Python writes for plain data, for
 * classes by name, and for torch's persistent ids. */
#include "pickle_stack.h"

#include "wsync/tool/str.h"

#include <string.h>

/* Enough for a bucket of tensors, and for torch.save of a tensor. Dtypes and storages are
 * in torch. */
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

/* ---- the program's bytes ---- */

static int take(struct pickle *p, uint64_t n, const uint8_t **out, struct ws_err *err)
{
	if (n > p->len - p->at)
		return pickle_fail(p, "cut short", err);
	*out = p->data + p->at;
	p->at += (size_t)n;
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
		return pickle_fail(p, "cut short", err);
	*text = (const char *)at;
	*len = (size_t)(end - at);
	p->at += *len + 1;
	return 0;
}

/* ---- values ---- */

static int push_int(struct pickle *p, enum pickle_kind kind, int64_t integer, struct ws_err *err)
{
	struct pickle_value *v = pickle_push(p, kind, err);
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
	if (take(p, len, &at, err))
		return -1;
	struct pickle_value *v = pickle_push(p, PICKLE_BIG, err);
	if (!v)
		return -1;
	v->text = (const char *)at;
	v->len = (size_t)len;
	return 0;
}

static int push_text(struct pickle *p, enum pickle_kind kind, unsigned length_bytes,
                     struct ws_err *err)
{
	uint64_t n = 0;
	const uint8_t *at = NULL;
	if (take_number(p, length_bytes, &n, err) || take(p, n, &at, err))
		return -1;
	struct pickle_value *v = pickle_push(p, kind, err);
	if (!v)
		return -1;
	v->text = (const char *)at;
	v->len = (size_t)n;
	return 0;
}

static int push_global(struct pickle *p, const char *module, size_t module_len, const char *name,
                       size_t name_len, struct ws_err *err)
{
	size_t i = 0;
	const size_t n = sizeof allowed / sizeof allowed[0];
	while (i < n && (!pickle_same(module, module_len, allowed[i].module) ||
	                 (allowed[i].name && !pickle_same(name, name_len, allowed[i].name))))
		i++;
	if (i == n) {
		char shown[2][80];
		ws_printable(shown[0], sizeof shown[0], module, module_len);
		ws_printable(shown[1], sizeof shown[1], name, name_len);
		return ws_err_set(err, WS_EINPUT,
		                  "Blocked unsafe class loading (%s.%s), to prevent "
		                  "exploitation of CVE-2025-10164",
		                  shown[0], shown[1]);
	}
	struct pickle_value *v = pickle_push(p, PICKLE_GLOBAL, err);
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
	const uint32_t *two = pickle_top(p, 2, err);
	if (!two)
		return -1;
	const struct pickle_value module = *pickle_at(p, two[0]), name = *pickle_at(p, two[1]);
	if (module.kind != PICKLE_STR || name.kind != PICKLE_STR)
		return pickle_fail(p, "a global without a name", err);
	p->stack.n -= 2;
	return push_global(p, module.text, module.len, name.text, name.len, err);
}

/* The function must be a global. NEWOBJ may have no arguments. */
static int call(struct pickle *p, enum pickle_kind kind, struct ws_err *err)
{
	const uint32_t *two = pickle_top(p, 2, err);
	if (!two)
		return -1;
	if (pickle_at(p, two[0])->kind != PICKLE_GLOBAL ||
	    pickle_at(p, two[1])->kind != PICKLE_TUPLE)
		return pickle_fail(p, "call of a value that is not a function", err);
	if (kind == PICKLE_CALL)
		return pickle_wrap(p, PICKLE_CALL, 2, err);
	if (pickle_at(p, two[1])->n)
		return pickle_fail(p, "new object with arguments", err);
	p->stack.n--;
	return pickle_wrap(p, PICKLE_OBJECT, 1, err);
}

static int build(struct pickle *p, struct ws_err *err)
{
	const uint32_t *two = pickle_top(p, 2, err);
	if (!two)
		return -1;
	if (pickle_at(p, two[0])->kind != PICKLE_OBJECT || pickle_at(p, two[0])->n != 1)
		return pickle_fail(p, "state for a value that is not a new object", err);
	return pickle_put_in(p, PICKLE_OBJECT, 1, err);
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
	case '(': return pickle_mark(p, err);
	case '0': return pickle_drop(p, err);
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
	case ')': return pickle_wrap(p, PICKLE_TUPLE, 0, err);
	case 0x85: return pickle_wrap(p, PICKLE_TUPLE, 1, err);
	case 0x86: return pickle_wrap(p, PICKLE_TUPLE, 2, err);
	case 0x87: return pickle_wrap(p, PICKLE_TUPLE, 3, err);
	case 't': return pickle_wrap_marked(p, err);
	case ']': return pickle_wrap(p, PICKLE_LIST, 0, err);
	case 'a': return pickle_put_in(p, PICKLE_LIST, 1, err);
	case 'e': return pickle_put_in_marked(p, PICKLE_LIST, err);
	case '}': return pickle_wrap(p, PICKLE_DICT, 0, err);
	case 's': return pickle_put_in(p, PICKLE_DICT, 2, err);
	case 'u': return pickle_put_in_marked(p, PICKLE_DICT, err);
	case 'q': return memo_op(p, pickle_remember, 1, err);
	case 'r': return memo_op(p, pickle_remember, 4, err);
	case 'h': return memo_op(p, pickle_recall, 1, err);
	case 'j': return memo_op(p, pickle_recall, 4, err);
	case 0x94: return pickle_remember(p, p->memo.n, err); /* MEMOIZE */
	case 'R': return call(p, PICKLE_CALL, err);
	case 0x81: return call(p, PICKLE_OBJECT, err); /* NEWOBJ */
	case 'b': return build(p, err);
	case 'Q': return pickle_wrap(p, PICKLE_PERSISTENT, 1, err);
	default: return pickle_fail(p, "unknown opcode", err);
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
	const uint32_t *result = p->marks.n ? NULL : pickle_top(p, 1, err);
	if (!result)
		return pickle_fail(p, "ends without a value", err);
	p->result = *result;
	return 0;
}
