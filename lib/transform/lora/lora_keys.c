/* SPDX-License-Identifier: Apache-2.0 */
/* lora_keys.c - the names of an adapter's tensors.
 *
 *   [base_model.model.]MODULE.lora_A[.ADAPTER].weight         also lora_B
 *   [base_model.model.]MODULE.lora_embedding_A[.ADAPTER]      also followed by .weight
 *   [base_model.model.]MODULE.modules_to_save[.ADAPTER].LEAF  also MODULE.LEAF, as PEFT saves it
 *   [base_model.model.]MODULE.base_layer.bias                 with bias="all" or "lora_only"
 *   MODULE.base_layer.lora_A.weight                           a second parameter of one module
 *
 * MODULE is a name of the base. It lacks the first "model." if it was trained without a head. */
#include "lora_priv.h"

#include "name_index.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SEGMENTS = 64 };

struct segment {
	const char *at;
	size_t n;
};

struct segments {
	struct segment v[MAX_SEGMENTS];
	size_t n;
};

static bool is(const struct segment *s, const char *word)
{
	return s->n == strlen(word) && memcmp(s->at, word, s->n) == 0;
}

static bool split(const char *name, struct segments *out)
{
	out->n = 0;
	for (const char *p = name;; p++) {
		const size_t n = strcspn(p, ".");
		if (out->n == MAX_SEGMENTS)
			return false;
		out->v[out->n++] = (struct segment){ p, n };
		p += n;
		if (!*p)
			return true;
	}
}

static void drop(struct segments *s, size_t i, size_t n)
{
	memmove(&s->v[i], &s->v[i + n], (s->n - i - n) * sizeof *s->v);
	s->n -= n;
}

static size_t find(const struct segments *s, const char *word)
{
	size_t i = 0;
	while (i < s->n && !is(&s->v[i], word))
		i++;
	return i;
}

/* Joins segments [first, last), except `without`. */
static void join(const struct segments *s, size_t first, size_t last, size_t without, char *dst)
{
	char *p = dst;
	*p = 0;
	for (size_t i = first; i < last; i++) {
		if (i == without)
			continue;
		if (p > dst)
			*p++ = '.';
		memcpy(p, s->v[i].at, s->v[i].n);
		p += s->v[i].n;
		*p = 0;
	}
}

static bool is_factor(const struct segment *s, struct ws_lora_key *out)
{
	out->embedding = s->n > 14 && memcmp(s->at, "lora_embedding", 14) == 0;
	if (is(s, "lora_A") || is(s, "lora_embedding_A"))
		out->kind = WS_LORA_A;
	else if (is(s, "lora_B") || is(s, "lora_embedding_B"))
		out->kind = WS_LORA_B;
	else
		return false;
	return true;
}

static void name_adapter(const struct segment *s, struct ws_lora_key *out)
{
	snprintf(out->adapter, sizeof out->adapter, "%.*s", (int)s->n, s->at);
}

/* The factor is one of the last three segments; an adapter's name and "weight" may follow. */
static bool find_factor(const struct segments *s, struct ws_lora_key *out)
{
	const struct segment *last = &s->v[s->n - 1];
	for (size_t back = 1; back <= 3 && back < s->n; back++) {
		const size_t i = s->n - back;
		if (!is_factor(&s->v[i], out))
			continue;
		if (back == 3 && !is(last, "weight"))
			return false;
		if (back >= 2 && is(last, "bias"))
			return false;
		if (back == 3 || (back == 2 && !is(last, "weight")))
			name_adapter(&s->v[i + 1], out);
		join(s, 0, i, i, out->name);
		return true;
	}
	out->embedding = false;
	return false;
}

static int refuse_relatives(const struct segments *s, const char *tensor, struct ws_err *err)
{
	static const char *const words[][2] = {
		{ "lora_magnitude_vector", "it is of DoRA, which is no low-rank change" },
		{ "lora_diag", "it is of KaSA, which is no plain low-rank change" },
		{ "trainable_tokens_delta",
		  "single rows of the embedding were trained, which is not supported" },
	};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (find(s, words[i][0]) < s->n) {
			ws_err_set(err, WS_EINPUT, "adapter tensor '%s': %s", ws_quote(tensor).text,
			           words[i][1]);
			return ws_err_hint(
				err,
				"merge it with PEFT (merge_and_unload) and push what it saves");
		}
	const size_t last = s->n - 1;
	if (last > 0 && is(&s->v[last], "bias") &&
	    (find(s, "lora_A") < s->n || find(s, "lora_B") < s->n))
		return ws_err_set(err, WS_EINPUT,
		                  "adapter tensor '%s': a factor with a bias (lora_bias) cannot "
		                  "be merged",
		                  ws_quote(tensor).text);
	return 0;
}

static void take_tensor(const struct segments *s, struct ws_lora_key *out)
{
	const size_t saved = find(s, "modules_to_save");
	out->kind = find(s, "original_module") < s->n ? WS_LORA_IGNORED : WS_LORA_TENSOR;
	join(s, 0, s->n, saved, out->name);
	if (saved + 2 >= s->n)
		return;
	name_adapter(&s->v[saved + 1], out);
	struct segments rest = *s; /* without the adapter's name */
	drop(&rest, saved, 2);
	join(&rest, 0, rest.n, rest.n, out->other);
}

int ws_lora_key_parse(const char *tensor, struct ws_lora_key *out, struct ws_err *err)
{
	struct segments s;
	*out = (struct ws_lora_key){ .kind = WS_LORA_TENSOR };
	if (strlen(tensor) >= WS_LORA_MAX_NAME || !split(tensor, &s))
		return ws_err_set(err, WS_EINPUT, "adapter tensor '%s': its name is too long",
		                  ws_quote(tensor).text);
	if (refuse_relatives(&s, tensor, err))
		return -1;
	if (s.n > 2 && is(&s.v[0], "base_model")) {
		out->headless = is(&s.v[1], "model");
		out->prefixed = true;
		drop(&s, 0, out->headless ? 2 : 1);
	}
	for (size_t i; (i = find(&s, "base_layer")) < s.n; out->depth++)
		drop(&s, i, 1);
	if (s.n && !find_factor(&s, out))
		take_tensor(&s, out);
	return 0;
}
