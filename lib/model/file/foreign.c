/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.c - recognizes what trainers and other programs save, by the names of files.
 *
 * A directory is read to a limit: it may have any number of entries, and links in circles. */
#include "foreign.h"

#include "wsync/tool/hub.h"
#include "wsync/tool/str.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	DEPTH = 4,      /* EXPERIMENT/global_step_10/actor/huggingface */
	ENTRIES = 4096, /* of one directory, */
	ALL = 16384,    /* and of all */
	DIRECTORIES = 128,
	OPENED = 64, /* files whose first bytes are read */
	SHOWN = 3
};

/* ---- the formats ---- */

struct kind {
	const char *directory; /* glob of the directory's name; NULL: any */
	const char *file;      /* glob of a name in it */
	const char *beside;    /* glob of another name in it; NULL: none is needed */
	bool pickle;           /* the file must begin as a pickle does */
	bool above;            /* the remedy is for the directory above */
	bool weak;             /* the directories below may say more */
	const char *what;
	/* '@': the directory, '&': the name of the directory with the file */
	const char *remedy;
};

static const char megatron[] = "a distributed checkpoint of Megatron",
		  bridge[] = "export it with Megatron Bridge: python "
			     "examples/conversion/convert_checkpoints.py export --hf-model MODEL "
			     "--megatron-path @ --hf-path OUT (or use the trainer's converter)",
		  zero[] = "shards of DeepSpeed ZeRO",
		  to_fp32[] = "gather them: python @/zero_to_fp32.py @ OUT --safe_serialization",
		  tag_to_fp32[] = "gather them: python @/zero_to_fp32.py @ OUT --tag & "
				  "--safe_serialization",
		  origin[] = "push the Hugging Face checkpoint that it was made from",
		  pickle[] = "a PyTorch pickle",
		  from_pretrained[] = "save it as safetensors, with transformers: "
				      "from_pretrained, then save_pretrained",
		  save_file[] = "save its tensors as safetensors, with the names of the Hugging "
				"Face checkpoint (save_file of safetensors)";

/* The first row that matches counts. */
static const struct kind kinds[] = {
	{ .file = "model_world_size_*_rank_*.pt",
	  .what = "FSDP shards of verl",
	  .remedy = "merge them: python -m verl.model_merger merge --backend fsdp --local_dir @ "
	            "--target_dir OUT" },
	{ .directory = "dist_ckpt",
	  .file = "*.distcp",
	  .above = true,
	  .what = megatron,
	  .remedy = "merge it: python -m verl.model_merger merge --backend megatron --local_dir @ "
	            "--target_dir OUT" },
	{ .directory = "pytorch_model_fsdp_*",
	  .file = "*.distcp",
	  .what = "FSDP shards of accelerate",
	  .remedy = "merge them: accelerate merge-weights @ OUT" },
	{ .file = "common.pt", .what = megatron, .remedy = bridge },
	{ .file = "*.distcp", .beside = "metadata.json", .what = megatron, .remedy = bridge },
	{ .directory = "mp_rank_*",
	  .file = "*.pt",
	  .above = true,
	  .what = "a checkpoint of Megatron",
	  .remedy = bridge },
	{ .file = "model_optim_rng.pt", .what = "a checkpoint of Megatron", .remedy = bridge },
	{ .file = "*.distcp",
	  .what = "a distributed checkpoint of torch (DCP)",
	  .remedy = "convert it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
	            "@ OUT.pt, then save its weights as safetensors" },
	{ .file = "zero_to_fp32.py",
	  .beside = "global_step[0-9]*",
	  .what = zero,
	  .remedy = to_fp32 },
	{ .file = "*_model_states.pt", .above = true, .what = zero, .remedy = tag_to_fp32 },
	{ .file = "*zero_pp_rank_*.pt", .above = true, .what = zero, .remedy = tag_to_fp32 },
	{ .file = "*_optim_states.pt", .above = true, .what = zero, .remedy = tag_to_fp32 },
	{ .file = "adapter_model*.bin",
	  .what = "a PEFT adapter as a PyTorch pickle",
	  .remedy = "save it as safetensors (save_pretrained), then: wsync-push BASE --lora @" },
	{ .file = "adapter_config.json",
	  .what = "a PEFT adapter",
	  .remedy = "push it with its base: wsync-push BASE --lora @" },
	{ .file = "*.gguf", .what = "a GGUF file", .remedy = origin },
	{ .file = "pytorch_model*.bin", .what = pickle, .remedy = from_pretrained },
	{ .file = "flax_model*.msgpack",
	  .what = "Flax weights",
	  .remedy = "save it as safetensors, with transformers: from_pretrained(from_flax=True), "
	            "then save_pretrained" },
	{ .file = "*.msgpack", .what = "Flax weights", .remedy = save_file },
	{ .file = "_CHECKPOINT_METADATA",
	  .what = "an Orbax checkpoint of JAX",
	  .remedy = save_file },
	{ .file = "manifest.ocdbt", .what = "an Orbax checkpoint of JAX", .remedy = save_file },
	{ .file = "tf_model*.h5",
	  .what = "TensorFlow weights",
	  .remedy = "save it as safetensors, with transformers: from_pretrained(from_tf=True), "
	            "then save_pretrained" },
	{ .file = "*.npz", .what = "a NumPy archive, as of MLX", .remedy = save_file },
	{ .file = "*.engine", .what = "an engine of TensorRT", .remedy = origin },
	{ .file = "*.onnx", .what = "an ONNX model", .remedy = origin },
	{ .file = "params_shard_*.bin", .what = "weights of MLC", .remedy = origin },
	{ .file = "*.nemo",
	  .what = "an archive of NeMo",
	  .remedy = "export it to the Hugging Face format, with NeMo" },
	{ .file = "consolidated.*.pth",
	  .what = "a checkpoint in Meta's own format",
	  .remedy = "convert it: python -m transformers.models.llama.convert_llama_weights_to_hf "
	            "--input_dir @ --output_dir OUT" },
	/* What trainers save beside the weights is not taken for them. */
	{ .file = "*model*.pt", .pickle = true, .what = pickle, .remedy = save_file },
	{ .file = "*.bin", .pickle = true, .what = pickle, .remedy = save_file },
	{ .file = "*.pt", .pickle = true, .what = pickle, .remedy = save_file },
	{ .file = "*.pth", .pickle = true, .what = pickle, .remedy = save_file },
	{ .file = "*.ckpt", .pickle = true, .what = pickle, .remedy = save_file },
	{ .file = "iter_[0-9]*",
	  .beside = "latest_checkpointed_iteration.txt",
	  .weak = true,
	  .what = "checkpoints of Megatron",
	  .remedy = bridge },
	{ .file = "global_step[0-9]*",
	  .beside = "latest",
	  .weak = true,
	  .what = zero,
	  .remedy = to_fp32 },
	/* Also stays behind in a repository of gathered weights. */
	{ .file = "zero_to_fp32.py", .weak = true, .what = zero, .remedy = to_fp32 },
};

static bool is_pickle(const uint8_t first[4])
{
	return memcmp(first, "PK\3\4", 4) == 0 || (first[0] == 0x80 && first[1] <= 5);
}

/* Has the name of what trainers save beside the weights? */
static bool is_no_model(const char *name)
{
	static const char *const globs[] = { "optimizer*",   "*optim_*",       "scheduler*",
		                             "rng_state*",   "random_states*", "training_args*",
		                             "extra_state*", "data.pt",        "tokenizer*" };
	return ws_glob_any(globs, sizeof globs / sizeof globs[0], name);
}

/* ---- paths ---- */

static char *join(const char *dir, const char *name)
{
	char *path = NULL;
	const size_t n = strlen(dir);
	return asprintf(&path, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name) < 0 ? NULL :
	                                                                                     path;
}

/* The directory above; names that only the file system can resolve get "/..". */
static char *above(const char *dir)
{
	size_t n = strlen(dir);
	while (n > 1 && dir[n - 1] == '/')
		n--;
	size_t at = n;
	while (at > 0 && dir[at - 1] != '/')
		at--;
	if (n - at <= 2 && strspn(dir + at, ".") >= n - at)
		return join(dir, "..");
	while (at > 1 && dir[at - 1] == '/')
		at--;
	return at ? strndup(dir, at) : strdup(".");
}

/* The last part of the path, of "." that of its real path. */
static void name_of(const char *dir, char *dst, size_t n)
{
	char *real = realpath(dir, NULL);
	const char *path = real ? real : dir, *slash = strrchr(path, '/');
	snprintf(dst, n, "%s", slash && slash[1] ? slash + 1 : path);
	free(real);
}

/* ---- one directory ---- */

struct entry {
	char *name;
	bool is_file; /* false: of another type, or not known */
};

struct listing {
	struct entry *entries;
	size_t n;
	char own[256]; /* name of the directory itself */
	dev_t dev;
	ino_t ino;
};

static void free_listing(struct listing *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->entries[i].name);
	free(l->entries);
}

/* Names that end in a number after the others, the largest number first. */
static int newest_first(const void *a, const void *b)
{
	const char *x = ((const struct entry *)a)->name, *y = ((const struct entry *)b)->name;
	const char *digits = "0123456789";
	const bool p = *x && strchr(digits, x[strlen(x) - 1]),
		   q = *y && strchr(digits, y[strlen(y) - 1]);
	if (p != q)
		return p ? 1 : -1;
	return p ? strverscmp(y, x) : strcmp(x, y);
}

static bool read_listing(const char *path, size_t most, struct listing *l)
{
	struct stat st;
	*l = (struct listing){ .entries = calloc(ENTRIES, sizeof *l->entries) };
	const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
	DIR *dir = l->entries && fd >= 0 && fstat(fd, &st) == 0 ? fdopendir(fd) : NULL;
	if (!dir) {
		if (fd >= 0)
			close(fd);
		free_listing(l);
		return false;
	}
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	for (const struct dirent *e; l->n < ENTRIES && l->n < most && (e = readdir(dir));) {
		const bool up = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
		char *name = up ? NULL : strdup(e->d_name);
		if (name)
			l->entries[l->n++] = (struct entry){ name, e->d_type == DT_REG };
	}
	closedir(dir);
	qsort(l->entries, l->n, sizeof *l->entries, newest_first);
	name_of(path, l->own, sizeof l->own);
	return true;
}

/* ---- the search ---- */

struct found {
	const struct kind *kind;
	char *dir, *file;
};

struct search {
	struct {
		char *path;
		unsigned depth;
	} queue[DIRECTORIES];
	struct {
		dev_t dev;
		ino_t ino;
	} seen[DIRECTORIES];
	size_t n, n_seen;
	char *checkpoints[SHOWN];
	size_t n_checkpoints;
	struct found strong, weak;
	unsigned opened;
	size_t left; /* entries to read */
};

static bool begins_as_pickle(struct search *s, const char *dir, const char *name)
{
	uint8_t first[4] = { 0 };
	char *path = !is_no_model(name) && s->opened++ < OPENED ? join(dir, name) : NULL;
	const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
	struct stat st;
	const bool is = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	                pread(fd, first, sizeof first, 0) == (ssize_t)sizeof first &&
	                is_pickle(first);
	if (fd >= 0)
		close(fd);
	free(path);
	return is;
}

static bool has(const struct listing *l, const char *glob)
{
	for (size_t i = 0; i < l->n; i++)
		if (ws_glob_match(glob, l->entries[i].name))
			return true;
	return false;
}

/* The name that makes the directory one of this kind; NULL: none does. */
static const char *match(struct search *s, const struct kind *k, const char *dir,
                         const struct listing *l)
{
	if ((k->directory && !ws_glob_match(k->directory, l->own)) ||
	    (k->beside && !has(l, k->beside)))
		return NULL;
	for (size_t i = 0; i < l->n; i++)
		if (ws_glob_match(k->file, l->entries[i].name) &&
		    (!k->pickle || begins_as_pickle(s, dir, l->entries[i].name)))
			return l->entries[i].name;
	return NULL;
}

static void find_kind(struct search *s, const char *dir, const struct listing *l)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		struct found *f = kinds[i].weak ? &s->weak : &s->strong;
		const char *file = f->kind ? NULL : match(s, &kinds[i], dir, l);
		if (!file)
			continue;
		*f = (struct found){ &kinds[i], strdup(dir), strdup(file) };
		if (!f->dir || !f->file)
			f->kind = NULL;
		return;
	}
}

/* Adapters and optimizers are saved as safetensors, too. */
static bool has_weights(const struct listing *l)
{
	for (size_t i = 0; i < l->n; i++) {
		const char *name = l->entries[i].name;
		if (*name != '.' && ws_ends_with(name, ".safetensors") &&
		    strncmp(name, "adapter", 7) != 0 && !is_no_model(name))
			return true;
	}
	return false;
}

static void enqueue(struct search *s, const char *dir, const struct listing *l, unsigned depth)
{
	for (size_t i = 0; i < l->n && depth < DEPTH && s->n < DIRECTORIES; i++) {
		struct stat st;
		const struct entry *e = &l->entries[i];
		char *path = e->is_file || *e->name == '.' || is_no_model(e->name) ?
		                     NULL :
		                     join(dir, e->name);
		if (path && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
			s->queue[s->n].path = path;
			s->queue[s->n++].depth = depth + 1;
		} else {
			free(path);
		}
	}
}

static bool is_new(struct search *s, const struct listing *l)
{
	for (size_t i = 0; i < s->n_seen; i++)
		if (s->seen[i].dev == l->dev && s->seen[i].ino == l->ino)
			return false;
	s->seen[s->n_seen].dev = l->dev;
	s->seen[s->n_seen++].ino = l->ino;
	return true;
}

static void look_into(struct search *s, const char *path, unsigned depth)
{
	struct listing l;
	if (!read_listing(path, s->left, &l))
		return;
	s->left -= l.n;
	if (is_new(s, &l)) {
		if (depth > 0 && has_weights(&l)) {
			if (s->n_checkpoints++ < SHOWN)
				s->checkpoints[s->n_checkpoints - 1] = strdup(path);
		} else {
			find_kind(s, path, &l);
			enqueue(s, path, &l, depth);
		}
	}
	free_listing(&l);
}

/* Looks into the directory and those below, level by level. */
static void search(struct search *s, const char *dir)
{
	*s = (struct search){ .n = 1, .left = ALL };
	s->queue[0].path = strdup(dir);
	for (size_t i = 0; i < s->n; i++)
		if (s->queue[i].path)
			look_into(s, s->queue[i].path, s->queue[i].depth);
}

static void end_search(struct search *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->queue[i].path);
	for (size_t i = 0; i < SHOWN; i++)
		free(s->checkpoints[i]);
	free(s->strong.dir);
	free(s->strong.file);
	free(s->weak.dir);
	free(s->weak.file);
}

/* ---- messages ---- */

static int hint_remedy(const struct kind *k, const char *dir, struct ws_err *err)
{
	char text[sizeof err->hint], name[256];
	size_t n = 0;
	char *place = k->above ? above(dir) : strdup(dir);
	name_of(dir, name, sizeof name);
	for (const char *p = k->remedy; place && *p && n + 1 < sizeof text; p++) {
		if (*p == '@' || *p == '&')
			n += (size_t)snprintf(text + n, sizeof text - n, "%s",
			                      ws_shell_word(*p == '@' ? place : name).text);
		else
			text[n++] = *p;
	}
	text[n < sizeof text ? n : sizeof text - 1] = 0;
	if (place)
		ws_err_hint(err, "%s", text);
	free(place);
	return -1;
}

/* The path without the directory that it begins with. */
static const char *below(const char *path, const char *dir)
{
	const size_t n = strlen(dir);
	if (strncmp(path, dir, n) != 0)
		return path;
	return path + n + strspn(path + n, "/");
}

static int report_kind(const struct found *f, const char *dir, struct ws_err *err)
{
	char file[256];
	char *path = join(f->dir, f->file);
	const char *shown = path ? below(path, dir) : f->file;
	ws_err_set(err, WS_EINPUT, "%s: no safetensors files there, but %s (%s)", dir,
	           f->kind->what, ws_printable(file, sizeof file, shown, strlen(shown)));
	free(path);
	return hint_remedy(f->kind, f->dir, err);
}

static int report_checkpoints(const struct search *s, const char *dir, struct ws_err *err)
{
	char list[sizeof err->hint / 2] = "";
	size_t n = 0;
	for (size_t i = 0; i < SHOWN && s->checkpoints[i] && n < sizeof list; i++)
		n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "",
		                      ws_shell_word(s->checkpoints[i]).text);
	if (s->n_checkpoints == 1) {
		ws_err_set(err, WS_EINPUT, "%s: no checkpoint there, but one below", dir);
		return ws_err_hint(err, "name its directory: %s", list);
	}
	ws_err_set(err, WS_EINPUT, "%s: no checkpoint there, but several below", dir);
	return ws_err_hint(err, "name one of them: %s%s", list,
	                   s->n_checkpoints > SHOWN ? ", ..." : "");
}

static int report_nothing(const char *dir, struct ws_err *err)
{
	char *inside = join(dir, "");
	ws_err_set(err, WS_EINPUT,
	           "%s: no checkpoint there: looked for model.safetensors.index.json, "
	           "model.safetensors and *.safetensors",
	           dir);
	if (inside)
		ws_hub_hint(inside, err);
	free(inside);
	return -1;
}

/* verl saves a config and a tokenizer in "huggingface", and the weights above it. */
static bool find_above(struct search *s, const char *dir)
{
	struct listing l;
	char name[256];
	name_of(dir, name, sizeof name);
	char *up = strcmp(name, "huggingface") == 0 ? above(dir) : NULL;
	if (up && read_listing(up, ENTRIES, &l)) {
		find_kind(s, up, &l);
		free_listing(&l);
	}
	free(up);
	return s->strong.kind != NULL;
}

int ws_foreign_directory(const char *dir, struct ws_err *err)
{
	struct search *s = NULL;
	if (ws_hub_check_root(dir, err))
		return -1;
	s = malloc(sizeof *s);
	if (!s)
		return ws_oom(err);
	search(s, dir);
	if (s->n_checkpoints)
		report_checkpoints(s, dir, err);
	else if (s->strong.kind || find_above(s, dir))
		report_kind(&s->strong, dir, err);
	else if (s->weak.kind)
		report_kind(&s->weak, dir, err);
	else
		report_nothing(dir, err);
	end_search(s);
	free(s);
	return -1;
}

char *ws_foreign_adapter(const char *dir)
{
	char *path = NULL;
	struct search *s = malloc(sizeof *s);
	if (!s)
		return NULL;
	search(s, dir);
	const struct kind *k = s->strong.kind;
	if (k && strcmp(k->file, "adapter_config.json") == 0) {
		path = s->strong.dir;
		s->strong.dir = NULL;
	}
	end_search(s);
	free(s);
	return path;
}

/* ---- files ---- */

static const struct magic {
	const char *bytes, *what, *remedy;
	size_t n;
} magics[] = {
	{ "GGUF", "a GGUF file", origin, 4 },
	{ "\x93NUMPY", "a NumPy array", save_file, 6 },
	{ "\x89HDF", "an HDF5 file, as of TensorFlow", save_file, 4 },
	{ "\x1f\x8b", "compressed with gzip", "unpack it first", 2 },
	{ "\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first", 4 },
	{ "<!DOC", "a web page", "download the file itself", 5 },
	{ "<html", "a web page", "download the file itself", 5 },
};

static int report_file(const char *path, const char *what, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "%s: not a safetensors file, but %s", path, what);
}

int ws_foreign_file(const char *path, const uint8_t first[8], struct ws_err *err)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char *dir = above(path);
	char own[256] = "";
	if (!dir)
		return -1;
	name_of(dir, own, sizeof own);
	for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++)
		if (memcmp(first, magics[i].bytes, magics[i].n) == 0) {
			report_file(path, magics[i].what, err);
			ws_err_hint(err, "%s", magics[i].remedy);
			goto out;
		}
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		const struct kind *k = &kinds[i];
		if (k->beside || !ws_glob_match(k->file, name) ||
		    (k->directory && !ws_glob_match(k->directory, own)) ||
		    (k->pickle && !is_pickle(first)))
			continue;
		report_file(path, k->what, err);
		hint_remedy(k, dir, err);
		goto out;
	}
	if (is_pickle(first)) {
		report_file(path, pickle, err);
		ws_err_hint(err, "%s", save_file);
	}
out:
	free(dir);
	return -1;
}
