// SPDX-License-Identifier: Apache-2.0

package uml

import "strings"

// tailSize is how many bytes of a console are kept for an error message.
const tailSize = 16 << 10

// tail keeps the end of what is written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if extra := len(t.kept) - tailSize; extra > 0 {
		t.kept = append([]byte(nil), t.kept[extra:]...)
	}
	return len(p), nil
}

// quote returns the console's output, indented, to follow an error message.
func (t *tail) quote() string {
	text := strings.TrimSpace(strings.ReplaceAll(string(t.kept), "\r", ""))
	if text == "" {
		return " (the console stayed silent)"
	}
	return "; the console said:\n    " + strings.ReplaceAll(text, "\n", "\n    ")
}

// fpFailure is what a kernel without fp-size.patch prints before it panics on a processor
// with AMX.
const fpFailure = "ptrace set fp regs failed"

// panicked returns why the kernel panicked, or "" if it printed no reason.
func (t *tail) panicked() string {
	why := ""
	for line := range strings.Lines(string(t.kept)) {
		line = strings.TrimSpace(line)
		if at := strings.Index(line, fpFailure); at >= 0 {
			return line[at:] + ": built without fp-size.patch, which processors with AMX need"
		}
		if at := strings.Index(line, "Kernel panic - not syncing"); at >= 0 && why == "" {
			why = line[at:]
		}
	}
	return why
}
