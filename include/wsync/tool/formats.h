/* SPDX-License-Identifier: Apache-2.0 */
/* formats.h - the table of what a server keeps and what is sent: right, refused, or unknown.
 *
 * Servers accept wrong formats and report success. A server in 16 bits copies codes as numbers and
 * drops the scales; one in FP8 casts 16 bits to codes under its old scales; one that rearranged
 * packed weights at its start drops unknown names. So only a pair that the table knows is right. */
#ifndef WSYNC_FORMATS_H
#define WSYNC_FORMATS_H

#include "wsync/dtype.h"
#include "wsync/tool/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ws_keeps {
	WS_KEEPS_UNTOLD,     /* the server does not tell its format */
	WS_KEEPS_NEW,        /* it tells a method that is not known here */
	WS_KEEPS_DENSE,      /* 16 or 32 bits */
	WS_KEEPS_ONLINE,     /* it quantizes the 16-bit weights that it receives */
	WS_KEEPS_ONCE,       /* it quantized its 16-bit checkpoint when it started */
	WS_KEEPS_FP8,        /* FP8, with scales of an unknown kind */
	WS_KEEPS_FP8_BLOCKS, /* X.weight_scale_inv, a scale for each block */
	WS_KEEPS_FP8_SCALES, /* X.weight_scale, for each tensor or row */
	WS_KEEPS_MXFP8,
	WS_KEEPS_NVFP4,
	WS_KEEPS_MXFP4,
	WS_KEEPS_AWQ,
	WS_KEEPS_GPTQ,
	WS_KEEPS_COMPRESSED, /* compressed-tensors: integers, or unknown */
	WS_KEEPS_INT8,
	WS_KEEPS_BNB,
	WS_KEEPS_GGUF,
	WS_KEEPS_TORCHAO,
	WS_KEEPS_QUARK,
	WS_KEEPS_MIXED,      /* other known methods, of packed weights */
	/* computes with copies that an update does not reach, see ws_format_copy */
	WS_KEEPS_PACKED_EXPERTS,
	WS_KEEPS_PACKED_HEAD,
	WS_KEEPS_PAST_LOADER,
	WS_N_KEEPS
};

enum ws_sends {
	WS_SENDS_OTHER,      /* no matrix that servers quantize: norms, embeddings, routers */
	WS_SENDS_DENSE,
	WS_SENDS_FP8_BLOCKS,
	WS_SENDS_FP8_SCALES,
	WS_SENDS_MXFP8,
	WS_SENDS_NVFP4,
	WS_SENDS_MXFP4,
	WS_SENDS_INTEGERS,   /* packed: X.qweight, X.weight_packed; or I8 */
	WS_SENDS_BNB,
	WS_SENDS_CODES,      /* a matrix of another type, of no known format */
	WS_N_SENDS
};

enum ws_fits { WS_FITS_RIGHT, WS_FITS_ASSUMED, WS_FITS_UNKNOWN, WS_FITS_REFUSED };

/* What is known of a server. */
struct ws_format_server {
	bool vllm;
	const char *quantization, *load_format; /* as told; "": null, or not told */
	bool told;                    /* the server told its quantization, or null */
	bool override;                /* its arguments replace quantization_config */
	const struct ws_quant *quant; /* of its config; NULL: not known */
};

enum ws_keeps ws_format_kept(const struct ws_format_server *s);
/* The word for what the server keeps, "fp8-blocks", or for what is sent. */
const char *ws_keeps_word(enum ws_keeps keeps);
const char *ws_sends_word(enum ws_sends sends);

/* The verdict for this pair. *why is a clause about the server ("keeps AWQ, packed ..."), and
 * *remedy a hint; both are set unless it is RIGHT. */
enum ws_fits ws_format_fits(bool vllm, enum ws_keeps keeps, enum ws_sends sends, const char **why,
                            const char **remedy);
/* Would a vLLM go on to compute with what it made of the old tensor when it started? device: as
 * told ("cpu", "cuda", "": not told). Else WS_N_KEEPS. */
struct ws_format_model {
	const char *device, *type; /* type: model_type of its config; "": not known */
	bool tied;                 /* the head is the embedding */
	bool dense;                /* it keeps 16 bits */
};
enum ws_keeps ws_format_copy(const struct ws_format_model *m, const char *name, unsigned n_dims);
/* The part of a model's name that says that it is quantized ("awq"); NULL: none. */
const char *ws_format_in_name(const char *name);

/* What a tensor tells of the format of its source. OTHER: nothing. */
enum ws_sends ws_format_of_tensor(const char *name, enum ws_dtype dtype, unsigned n_dims);
/* Is it a module that no server quantizes, whatever its list says: an embedding, a head, a router
 * ("model.layers.0.mlp.gate")? In servers they are no linear layers, or built without a method. */
bool ws_format_is_whole(const char *module);
bool ws_format_is_dense(enum ws_dtype dtype); /* a float of 16 bits or more */
/* Is it a matrix that a server may quantize, unless its list excludes its module? Sets module,
 * of n bytes. Experts of a layer in one tensor are one too. */
bool ws_format_is_expert(const char *name, unsigned n_dims);
bool ws_format_is_matrix(const char *name, unsigned n_dims, char *module, size_t n);

#ifdef __cplusplus
}
#endif
#endif
