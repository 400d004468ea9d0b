/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - what is known of the settings that make numbers alike, and how settings are kept. */
#ifndef WS_CHECK_SETTINGS_H
#define WS_CHECK_SETTINGS_H

#include "wsync/tool/flags.h"
#include "wsync/tool/json_read.h"

enum ws_setting_kind { WS_SETTING_SWITCH, WS_SETTING_NUMBER, WS_SETTING_WORD, WS_SETTING_DTYPE };

struct ws_setting_known {
	const char *key;          /* the server's; NULL: no server shows it */
	const char *trainers;     /* a trainer's word for it, or NULL */
	enum ws_setting_kind kind;
	bool chosen;              /* null, as "auto", means that the server chooses */
	const char *meaning;
};

extern const struct ws_setting_known ws_settings_known[];
extern const size_t ws_settings_n_known;

/* By the server's or by a trainer's word. NULL: nothing is known of it. */
const struct ws_setting_known *ws_setting_know(const char *key);
const struct ws_setting *ws_setting_find(const struct ws_settings *s, const char *key);

/* Adds the members of an object. strict: composite values and doubled keys are WS_EINPUT. */
int ws_settings_take(struct ws_settings *s, const struct ws_json *object, bool strict,
                     const char *what, struct ws_err *err);

#endif
