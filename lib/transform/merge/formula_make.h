/* SPDX-License-Identifier: Apache-2.0 */
/* formula_make.h - a product written down as a formula. */
#ifndef WS_TRANSFORM_FORMULA_MAKE_H
#define WS_TRANSFORM_FORMULA_MAKE_H

#include "formula.h"
#include "product.h"

/* NULL in *out: there is none for it. The product must outlive it. */
int ws_formula_make(struct ws_product *p, struct ws_formula **out, struct ws_err *err);
void ws_formula_free(struct ws_formula *f); /* NULL is fine */

#endif
