// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// failures is what tests have failed by, to be said once more at the end: the logs of the
// proxies come between, and of a long output it is the end that is kept.
var failures struct {
	sync.Mutex
	all []string
}

func (w *world) remember(text string) {
	failures.Lock()
	defer failures.Unlock()
	failures.all = append(failures.all, w.Name()+": "+strings.TrimSpace(text))
}

func (w *world) Error(args ...any) {
	w.Helper()
	w.remember(fmt.Sprintln(args...))
	w.T.Error(args...)
}

func (w *world) Errorf(format string, args ...any) {
	w.Helper()
	w.remember(fmt.Sprintf(format, args...))
	w.T.Errorf(format, args...)
}

func (w *world) Fatal(args ...any) {
	w.Helper()
	w.remember(fmt.Sprintln(args...))
	w.T.Fatal(args...)
}

func (w *world) Fatalf(format string, args ...any) {
	w.Helper()
	w.remember(fmt.Sprintf(format, args...))
	w.T.Fatalf(format, args...)
}

// tellFailures says what has failed.
func tellFailures(to io.Writer) {
	for _, f := range failures.all {
		fmt.Fprintln(to, "failed:", f)
	}
}
