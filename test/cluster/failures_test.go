// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// failures are the messages of failed tests, which are printed again at the end: the logs of
// the proxies are between them, and only the end of a long output is kept.
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

// printFailures prints the failures.
func printFailures(to io.Writer) {
	for _, f := range failures.all {
		fmt.Fprintln(to, "failed:", f)
	}
}
