/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_nccl_id.c - protocol 4, with the frame and the memo that Python writes: the same bytes as
 * from a trainer in Python. */
#include "pickle.h"

#include <string.h>

enum { ID_BYTES = 128, FRAME_BYTES = 236 };

static void put_text(struct ws_buf *out, const char *text)
{
	ws_buf_putc(out, '\x8c');
	ws_buf_putc(out, (char)strlen(text));
	ws_buf_puts(out, text);
	ws_buf_putc(out, '\x94');
}

/* A global by its module and its name. */
static void put_global(struct ws_buf *out, const char *module, const char *name)
{
	put_text(out, module);
	put_text(out, name);
	ws_buf_add(out, "\x93\x94", 2);
}

void ws_pickle_nccl_id(struct ws_buf *out, const void *id)
{
	const char frame[] = { '\x95', (char)FRAME_BYTES, 0, 0, 0, 0, 0, 0, 0 };
	ws_buf_add(out, "\x80\x04", 2);
	ws_buf_add(out, frame, sizeof frame);
	put_global(out, "_ctypes", "_unpickle");
	put_global(out, "vllm.distributed.device_communicators.pynccl_wrapper", "ncclUniqueId");
	ws_buf_add(out, "}\x94" "C", 3);
	ws_buf_putc(out, (char)ID_BYTES);
	ws_buf_add(out, id, ID_BYTES);
	ws_buf_add(out, "\x94\x86\x94\x86\x94R\x94.", 8);
}
