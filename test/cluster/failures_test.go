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

func (e *env) remember(text string) {
	failures.Lock()
	defer failures.Unlock()
	failures.all = append(failures.all, e.Name()+": "+strings.TrimSpace(text))
}

func (e *env) Error(args ...any) {
	e.Helper()
	e.remember(fmt.Sprintln(args...))
	e.T.Error(args...)
}

func (e *env) Errorf(format string, args ...any) {
	e.Helper()
	e.remember(fmt.Sprintf(format, args...))
	e.T.Errorf(format, args...)
}

func (e *env) Fatal(args ...any) {
	e.Helper()
	e.remember(fmt.Sprintln(args...))
	e.T.Fatal(args...)
}

func (e *env) Fatalf(format string, args ...any) {
	e.Helper()
	e.remember(fmt.Sprintf(format, args...))
	e.T.Fatalf(format, args...)
}

// tellFailures says what has failed.
func tellFailures(to io.Writer) {
	for _, f := range failures.all {
		fmt.Fprintln(to, "failed:", f)
	}
}
