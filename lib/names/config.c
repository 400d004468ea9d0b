/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - look-ups in a config.json from an untrusted source.
 *
 * The JSON stays as parsed; a look-up walks the keys of a level, whose number is limited. Numbers
 * are returned as they are: the caller knows their purpose and refuses absurd ones (a head count of
 * -1). */
#include "wsync/tool/config.h"

#include "file.h"
#include "skip_index.h"
#include "wsync/tool/hub.h"
#include "wsync/tool/json_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Real files have less than 200 keys and 1000 elements. Larger files are refused, because look-ups
 * walk all keys. */
enum { MAX_FILE_BYTES = 16 << 20, MAX_KEYS = 4096, MAX_ELEMENTS = 65536,
       MAX_GLOBS = 2048 };

struct ws_config {
	struct ws_json *root;
	const struct ws_json *text; /* text_config; NULL: not nested */
	struct ws_json *beside;     /* hf_quant_config.json; NULL */
	char *path;
	struct ws_quant quant;
	const char **skip;          /* quant.skip */
	struct ws_skip_index *index; /* quant.index */
};

static const struct ws_json *member(const struct ws_json *level, const char *key)
{
	const struct ws_json *j = ws_json_get(level, key);
	return ws_json_type(j) == WS_JSON_NULL ? NULL : j;
}

static const struct ws_json *find(const struct ws_config *c, const char *key)
{
	const struct ws_json *j = member(c->text, key);
	return j ? j : member(c->root, key);
}

static int check_level(const struct ws_config *c, const struct ws_json *level, struct ws_err *err)
{
	const char *twice;
	if (ws_json_count(level) > MAX_KEYS)
		return ws_err_set(err, WS_EINPUT, "%s: more than %d keys", c->path, MAX_KEYS);
	if ((twice = ws_json_duplicate(level)))
		return ws_err_set(err, WS_EINPUT, "%s: \"%.60s\" is there twice", c->path, twice);
	for (const struct ws_json *j = ws_json_first(level); j; j = ws_json_next(j))
		if (ws_json_type(j) == WS_JSON_ARRAY && ws_json_count(j) > MAX_ELEMENTS)
			return ws_err_set(err, WS_EINPUT, "%s: \"%.60s\" has more than %d elements",
			                  c->path, ws_json_key(j), MAX_ELEMENTS);
	return 0;
}

static int read_block(struct ws_config *c, const struct ws_json *block, struct ws_err *err)
{
	if (!block)
		return 0;
	const struct ws_json *rows = ws_json_first(block);
	if (ws_json_type(block) != WS_JSON_ARRAY || ws_json_count(block) != 2 ||
	    !ws_json_int(rows, &c->quant.block[0]) ||
	    !ws_json_int(ws_json_next(rows), &c->quant.block[1]) ||
	    c->quant.block[0] < 1 || c->quant.block[1] < 1)
		return ws_err_set(err, WS_EINPUT, "%s: \"weight_block_size\" must be two positive "
		                  "integers", c->path);
	return 0;
}

static int read_skip(struct ws_config *c, const struct ws_json *list, const char *key,
                     struct ws_err *err)
{
	const size_t n = ws_json_count(list);
	if (ws_json_type(list) != WS_JSON_ARRAY)
		return ws_err_set(err, WS_EINPUT, "%s: \"%s\" must be an array of names", c->path,
		                  key);
	if (n == 0)
		return 0;
	c->skip = calloc(n, sizeof *c->skip);
	if (!c->skip)
		return ws_oom(err);
	for (const struct ws_json *j = ws_json_first(list); j; j = ws_json_next(j)) {
		const char *name = ws_json_string(j);
		if (!name)
			return ws_err_set(err, WS_EINPUT,
			                  "%s: \"%s\" has an element that is not a name", c->path,
			                  key);
		c->skip[c->quant.n_skip++] = name;
	}
	c->quant.skip = c->skip;
	c->quant.index = c->index = ws_skip_index_make(c->skip, n);
	if (!c->index)
		return ws_oom(err);
	if (ws_skip_index_globs(c->index) <= MAX_GLOBS)
		return 0;
	return ws_err_set(err, WS_EINPUT, "%s: \"%s\" has more than %d names with '*'", c->path,
	                  key, MAX_GLOBS);
}

/* The numbers of the weights: AWQ and GPTQ say it themselves, compressed-tensors by groups. */
static void read_numbers(struct ws_config *c, const struct ws_json *q)
{
	const struct ws_json *group = ws_json_first(member(q, "config_groups")),
			     *weights = member(group, "weights");
	c->quant.bits = ws_json_get_int(weights ? weights : q, weights ? "num_bits" : "bits", 0);
	c->quant.integers = strcmp(ws_json_get_string(weights, "type", ""), "int") == 0;
	c->quant.algo = ws_json_get_string(q, "quant_algo", ws_json_get_string(q, "format", ""));
}

/* q: the object that says how the weights are quantized, or NULL. */
static int read_quant(struct ws_config *c, const struct ws_json *q, struct ws_err *err)
{
	/* The key of the list in GPTQ's quantizers, in Hugging Face's checkpoints, in
	 * compressed-tensors and in ModelOpt, in the order of the servers. */
	static const char *const skips[] = { "ignored_layers", "modules_to_not_convert", "ignore",
		                             "exclude_modules" };
	const struct ws_json *list = NULL;
	c->quant.method = c->quant.scale_fmt = c->quant.activation = c->quant.algo = "";
	if (!q)
		return 0;
	if (ws_json_type(q) != WS_JSON_OBJECT)
		return ws_err_set(err, WS_EINPUT, "%s: \"%s\" is no object", c->path,
		                  ws_json_key(q));
	if (check_level(c, q, err))
		return -1;
	/* A method without its name is no reason to think of 16 bits. */
	c->quant.method = ws_json_get_string(q, "quant_method",
	                                     member(q, "quant_algo") ? "modelopt" :
	                                     ws_json_count(q)        ? "unnamed" :
	                                                               "");
	c->quant.scale_fmt = ws_json_get_string(q, "scale_fmt", "");
	c->quant.activation = ws_json_get_string(q, "activation_scheme", "");
	read_numbers(c, q);
	if (read_block(c, member(q, "weight_block_size"), err))
		return -1;
	for (size_t i = 0; i < sizeof skips / sizeof skips[0] && !list; i++)
		if ((list = member(q, skips[i]))) {
			c->quant.ignored_layers = i == 0;
			return read_skip(c, list, skips[i], err);
		}
	return 0;
}

/* Older checkpoints of compressed-tensors have the second key. */
static const struct ws_json *quant_of(const struct ws_config *c)
{
	const struct ws_json *q = find(c, "quantization_config");
	return q ? q : find(c, "compression_config");
}

int ws_config_parse(const char *text, size_t n, const char *what, struct ws_config **out,
                    struct ws_err *err)
{
	struct ws_config *c = calloc(1, sizeof *c);
	if (!c || !(c->path = strdup(what))) {
		ws_oom(err);
		goto fail;
	}
	if (n > MAX_FILE_BYTES) {
		ws_err_set(err, WS_EINPUT, "%s: larger than %d MiB", what, MAX_FILE_BYTES >> 20);
		goto fail;
	}
	if (!(c->root = ws_json_parse(text, n, what, err)))
		goto fail;
	if (ws_json_type(c->root) != WS_JSON_OBJECT) {
		ws_err_set(err, WS_EINPUT, "%s: not a JSON object", what);
		goto fail;
	}
	c->text = member(c->root, "text_config");
	if (c->text && ws_json_type(c->text) != WS_JSON_OBJECT) {
		ws_err_set(err, WS_EINPUT, "%s: \"text_config\" is no object", what);
		goto fail;
	}
	if (check_level(c, c->root, err) || check_level(c, c->text, err) ||
	    read_quant(c, quant_of(c), err))
		goto fail;
	*out = c;
	return 0;
fail:
	ws_config_free(c);
	return -1;
}

/* The path of that file beside the config.json; NULL: out of memory. */
static char *path_beside(const struct ws_config *c, const char *file)
{
	char *path;
	const char *slash = strrchr(c->path, '/');
	const int n = slash ? (int)(slash + 1 - c->path) : 0;
	return asprintf(&path, "%.*s%s", n, c->path, file) < 0 ? NULL : path;
}

/* ModelOpt writes {"quantization": {"quant_algo", "exclude_modules", ...}} into a file of its own;
 * SGLang and vLLM read it where config.json has no quantization. */
static int read_modelopt(struct ws_config *c, const char *path, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, MAX_FILE_BYTES);
	if (ws_file_read(path, &text, err) == 0)
		c->beside = ws_json_parse(ws_buf_str(&text), text.len, path, err);
	ws_buf_free(&text);
	if (!c->beside)
		return -1;
	const struct ws_json *q = member(c->beside, "quantization");
	if (!q)
		return ws_err_set(err, WS_EINPUT, "%s: it has no \"quantization\"", path);
	/* null: of the KV cache alone */
	return member(q, "quant_algo") || ws_json_type(q) != WS_JSON_OBJECT ?
	               read_quant(c, q, err) :
	               0;
}

/* Files beside a config.json that say that its weights are quantized. */
static int read_beside(struct ws_config *c, struct ws_err *err)
{
	char *modelopt = path_beside(c, "hf_quant_config.json"),
	     *ascend = path_beside(c, "quant_model_description.json");
	int rc = 0;
	if (!modelopt || !ascend)
		rc = ws_oom(err);
	else if (quant_of(c))
		rc = 0;
	else if (access(modelopt, F_OK) == 0)
		rc = read_modelopt(c, modelopt, err);
	else if (access(ascend, F_OK) == 0)
		c->quant.method = "modelslim";
	free(modelopt);
	free(ascend);
	return rc;
}

static int open_path(const char *path, struct ws_config **out, struct ws_err *err)
{
	const char *dir = path;
	struct stat st;
	struct ws_buf text;
	char *inside = NULL;
	int rc = -1;
	ws_buf_init(&text, MAX_FILE_BYTES);
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		if (asprintf(&inside, "%s%sconfig.json", path,
		             path[0] && path[strlen(path) - 1] == '/' ? "" : "/") < 0) {
			inside = NULL;
			ws_oom(err);
			goto out;
		}
		path = inside;
	}
	if (ws_file_read(path, &text, err) == 0)
		rc = ws_config_parse(ws_buf_str(&text), text.len, path, out, err);
	else if (access(path, F_OK) && errno == ENOENT && !ws_hub_check_root(dir, err))
		ws_hub_hint(path, err);
	if (rc == 0 && read_beside(*out, err)) {
		ws_config_free(*out);
		*out = NULL;
		rc = -1;
	}
out:
	ws_buf_free(&text);
	free(inside);
	return rc;
}

int ws_config_open(const char *path, struct ws_config **out, struct ws_err *err)
{
	char *dir;
	if (!ws_hub_is(path))
		return open_path(path, out, err);
	if (ws_hub_resolve(path, &dir, err))
		return -1;
	const int rc = open_path(dir, out, err);
	free(dir);
	return rc;
}

void ws_config_free(struct ws_config *c)
{
	if (!c)
		return;
	ws_json_free(c->root);
	ws_json_free(c->beside);
	free(c->skip);
	ws_skip_index_free(c->index);
	free(c->path);
	free(c);
}

const char *ws_config_path(const struct ws_config *c)
{
	return c->path;
}

static const char *architecture_of(const struct ws_json *level)
{
	const char *name = ws_json_string(ws_json_first(ws_json_get(level, "architectures")));
	return name ? name : "";
}

const char *ws_config_architecture(const struct ws_config *c)
{
	return architecture_of(c->root);
}

const char *ws_config_text_architecture(const struct ws_config *c)
{
	return architecture_of(c->text);
}

const char *ws_config_model_type(const struct ws_config *c)
{
	return ws_json_get_string(c->root, "model_type", "");
}

const char *ws_config_text_model_type(const struct ws_config *c)
{
	return ws_json_get_string(c->text, "model_type", "");
}

bool ws_config_knows(const struct ws_config *c, const char *key)
{
	return find(c, key) != NULL;
}

static bool integer(const struct ws_json *j, int64_t *out)
{
	if (ws_json_type(j) == WS_JSON_BOOL) {
		*out = ws_json_bool(j, false);
		return true;
	}
	return ws_json_int(j, out);
}

bool ws_config_int(const struct ws_config *c, const char *key, int64_t *out)
{
	return integer(find(c, key), out);
}

const char *ws_config_string(const struct ws_config *c, const char *key)
{
	return ws_json_string(find(c, key));
}

bool ws_config_has(const struct ws_config *c, const char *key, int64_t value)
{
	const struct ws_json *list = find(c, key);
	if (ws_json_type(list) != WS_JSON_ARRAY)
		return false;
	for (const struct ws_json *j = ws_json_first(list); j; j = ws_json_next(j)) {
		int64_t element;
		if (ws_json_int(j, &element) && element == value)
			return true;
	}
	return false;
}

static bool same(const struct ws_json *a, const struct ws_json *b)
{
	int64_t x, y;
	double u, v;
	if (integer(a, &x) && integer(b, &y))
		return x == y;
	if (ws_json_double(a, &u) && ws_json_double(b, &v))
		return !(u < v) && !(v < u);
	if (ws_json_string(a) && ws_json_string(b))
		return strcmp(ws_json_string(a), ws_json_string(b)) == 0;
	if (ws_json_type(a) != ws_json_type(b) || ws_json_count(a) != ws_json_count(b))
		return false;
	if (ws_json_type(a) != WS_JSON_ARRAY)
		return true; /* nested objects describe other parts of a model */
	for (a = ws_json_first(a), b = ws_json_first(b); a;
	     a = ws_json_next(a), b = ws_json_next(b))
		if (ws_json_type(a) == WS_JSON_ARRAY || !same(a, b))
			return false;
	return true;
}

bool ws_config_disagrees(const struct ws_config *c, const char *key)
{
	const struct ws_json *inner = member(c->text, key), *outer = member(c->root, key);
	return inner && outer && !same(inner, outer);
}

const struct ws_quant *ws_config_quant(const struct ws_config *c)
{
	return &c->quant;
}

void ws_config_set_rules(struct ws_config *c, unsigned rules)
{
	c->quant.rules = rules;
}

int ws_config_set_quant(struct ws_config *c, const struct ws_quant *q, struct ws_err *err)
{
	const char **skip = calloc(q->n_skip + 1, sizeof *skip);
	if (!skip)
		return ws_oom(err);
	for (size_t i = 0; i < q->n_skip; i++)
		skip[i] = q->skip[i];
	struct ws_skip_index *index = ws_skip_index_make(skip, q->n_skip);
	if (!index) {
		free(skip);
		return ws_oom(err);
	}
	free(c->skip);
	ws_skip_index_free(c->index);
	c->quant = *q;
	c->quant.skip = c->skip = skip;
	c->quant.index = c->index = index;
	return 0;
}
