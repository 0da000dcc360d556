// SPDX-License-Identifier: Apache-2.0

// Package plain makes text that others wrote safe to show: on a terminal, where escape sequences
// have effects, and in a log, where a line break begins a forged line.
package plain

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/slipstream-proxy/slipstream/internal/collect"
)

// Line returns a text of others as one line: white space is one space, and what cannot be seen
// (control characters, overrides of the direction of text) is escaped as in JSON. It is cut to
// about a number of bytes.
func Line(text string, limit int) string {
	cut := ""
	if len(text) > limit {
		text, cut = strings.ToValidUTF8(text[:limit], ""), "..."
	}
	return escape(strings.Join(strings.Fields(text), " ")) + cut
}

func escape(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case unicode.IsPrint(r) && (r != utf8.RuneError || size > 1), r == '\n', r == '\t':
			b.WriteString(text[:size])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[size:]
	}
	return b.String()
}

// Number returns a number of things, as in "1 Service" and "2 Services".
func Number(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// List returns the texts of some things with a separator between them.
func List[T fmt.Stringer](all []T, separator string) string {
	return strings.Join(collect.From(all, T.String), separator)
}

// Writer escapes what is written to it, except for line breaks and tabs. JSON stays the same JSON:
// it has such characters only in strings.
type Writer struct {
	To   io.Writer
	rest []byte // the beginning of a character
}

// Write writes all of p but a character of which the rest has not been written yet.
func (w *Writer) Write(p []byte) (int, error) {
	text := append(w.rest, p...)
	end := len(text)
	for i := max(0, end-utf8.UTFMax); i < end; i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			end = i
			break
		}
	}
	w.rest = append([]byte(nil), text[end:]...)
	if _, err := io.WriteString(w.To, escape(string(text[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}
