/* SPDX-License-Identifier: Apache-2.0 */
/* tied.c - heads that share the weight of the embedding: whether a config.json says so, and the
 * names of the two. */
#include "tied.h"

#include "wsync/tool/config.h"

#include <stdio.h>
#include <string.h>

/* Model types that tie the two where config.json does not say: Transformers' class for them has
 * tie_word_embeddings true, and does not write what is a default. */
static const char *const tied_types[] = {
	"bloom",        "cohere",       "cohere2",   "cohere2_moe",  "ctrl",
	"ernie4_5",     "ernie4_5_moe", "falcon",    "falcon_mamba", "gemma",
	"gemma2",       "gemma3",       "gemma3_text", "gemma3n",    "gemma3n_text",
	"gemma4",       "gemma4_text",  "gpt2",      "gpt_bigcode",  "gpt_neo",
	"granite_swa",  "jetmoe",       "lfm2",      "lfm2_moe",     "mamba",
	"minicpm3",     "mpt",          "openai-gpt", "opt",         "paligemma",
	"recurrent_gemma", "smollm3",   "starcoder2", "vaultgemma",  "xglm",
	"zamba",        "zamba2",
};

static bool is_tied_type(const char *type)
{
	for (size_t i = 0; i < sizeof tied_types / sizeof *tied_types; i++)
		if (strcmp(type, tied_types[i]) == 0)
			return true;
	return false;
}

bool ws_config_tied(const struct ws_config *c)
{
	int64_t tied;
	if (ws_config_int(c, "tie_word_embeddings", &tied))
		return tied != 0;
	const char *inner = ws_config_text_model_type(c);
	return is_tied_type(*inner ? inner : ws_config_model_type(c));
}

static const char head_name[] = "lm_head.weight";
static const char *const embeddings[] = {
	"model.embed_tokens.weight", "embed_tokens.weight",
	"model.language_model.embed_tokens.weight",
	"transformer.wte.weight",
	"model.decoder.embed_tokens.weight",
};

/* The length of what stands in front of a name; -1: the text does not end in this name. */
static int before(const char *text, const char *name)
{
	const size_t n = strlen(text), end = strlen(name);
	if (n < end || strcmp(text + n - end, name) || (n > end && text[n - end - 1] != '.'))
		return -1;
	return (int)(n - end);
}

const char *ws_embedding_of(const char *head, unsigned i, char *dst, size_t size)
{
	const int n = before(head, head_name);
	if (i >= sizeof embeddings / sizeof *embeddings || n < 0)
		return NULL;
	return snprintf(dst, size, "%.*s%s", n, head, embeddings[i]) < (int)size ? dst : NULL;
}

const char *ws_head_of(const char *embedding, char *dst, size_t size)
{
	int n = -1, most = -1; /* the longest name leaves the shortest front */
	for (size_t i = 0; i < sizeof embeddings / sizeof *embeddings; i++)
		if ((n = before(embedding, embeddings[i])) >= 0 && (most < 0 || n < most))
			most = n;
	if (most < 0)
		return NULL;
	return snprintf(dst, size, "%.*s%s", most, embedding, head_name) < (int)size ? dst : NULL;
}
