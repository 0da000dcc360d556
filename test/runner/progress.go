// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progress tells what goes on.
type progress struct {
	to      io.Writer
	module  string // import path that package paths are shortened by
	verbose bool

	mu sync.Mutex
}

// event shows the output of a test as it comes, if wanted.
func (p *progress) event(kernel string, e event) {
	if !p.verbose || e.Action != "output" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, "[%s] %s\n", kernel, strings.TrimSuffix(e.Output, "\n"))
}

// outputAtOnce is how many lines of a failed test are shown as soon as its package
// ends. The report at the end has all of them.
const outputAtOnce = 12

// done shows one line for a package that ended on a kernel, and what failed in it,
// so that an output that breaks off says it too.
func (p *progress) done(r packageRun) {
	status := "ok  "
	if r.failed() {
		status = "FAIL"
	}
	var c cell
	var failures strings.Builder
	for _, t := range mergePackage([]packageRun{r}) {
		c.count(t.on[r.kernel])
		if t.verdict == verdictFailed {
			fmt.Fprintf(&failures, "      %s\n%s\n", t.name, indent(indent(beginning(t.details[0].text, outputAtOnce))))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, "%s  %-24s %-28s %s (%v)\n", status, r.kernel, shorten(r.pkg, p.module), c, r.elapsed.Round(10*time.Millisecond))
	io.WriteString(p.to, failures.String())
}

// beginning is the first lines of a text.
func beginning(text string, lines int) string {
	all := strings.SplitAfterN(strings.TrimSuffix(text, "\n"), "\n", lines+1)
	if len(all) <= lines {
		return text
	}
	return strings.Join(all[:lines], "") + "(more at the end)"
}

// shorten makes a package path relative to its module.
func shorten(pkg, module string) string {
	if rest, ok := strings.CutPrefix(pkg, module); ok {
		return "." + rest
	}
	return pkg
}
