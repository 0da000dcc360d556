// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"io"
	"strings"
	"sync"
)

// tailSize is how many bytes of a console are kept for an error message.
const tailSize = 16 << 10

// tail passes on what is written and keeps the end of it.
type tail struct {
	to io.Writer // may be nil

	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.kept = append(t.kept, p...)
	if extra := len(t.kept) - tailSize; extra > 0 {
		t.kept = append([]byte(nil), t.kept[extra:]...)
	}
	t.mu.Unlock()
	if t.to != nil {
		return t.to.Write(p)
	}
	return len(p), nil
}

// quote returns what was kept, indented, to follow an error message.
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(strings.ReplaceAll(string(t.kept), "\r", ""))
	if text == "" {
		return " (the console stayed silent)"
	}
	return "; the console said:\n    " + strings.ReplaceAll(text, "\n", "\n    ")
}

// fpFailure is what a kernel without fp-size.patch says before it panics on a processor
// with AMX.
const fpFailure = "ptrace set fp regs failed"

// panicked returns why the kernel panicked, or "" if it did not say.
func (t *tail) panicked() string {
	t.mu.Lock()
	defer t.mu.Unlock()
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
