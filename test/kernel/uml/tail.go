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
