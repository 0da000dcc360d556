// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// logbook takes down what a slipstream process logs.
type logbook struct {
	mu         sync.Mutex
	rest       []byte // of a line that is not complete
	lines      []string
	problems   []string // errors and warnings among them
	programmed []programmed
	news       chan struct{} // closed when programmed grows
}

// programmed is one update of the kernel.
type programmed struct {
	kind     string        // "full" or "change"
	elements int           // written to the kernel
	took     time.Duration // as slipstream measured it
	read     time.Time     // when the line was read: a little after the update
}

func newLogbook() *logbook { return &logbook{news: make(chan struct{})} }

// Write implements io.Writer.
func (l *logbook) Write(p []byte) (int, error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.take(string(line), now)
		l.rest = rest
	}
}

func (l *logbook) take(line string, now time.Time) {
	l.lines = append(l.lines, line)
	if isProblem(line) {
		l.problems = append(l.problems, line)
	}
	if u, ok := parseProgrammed(line); ok {
		u.read = now
		l.programmed = append(l.programmed, u)
		close(l.news)
		l.news = make(chan struct{})
	}
}

// isProblem tells whether a line is more than information. klog's lines start with
// their severity; a line without klog's header is the process's last words.
func isProblem(line string) bool { return line != "" && line[0] != 'I' }

var programmedLine = regexp.MustCompile(`"Programmed the kernel" kind="(full|change)" .*elements=(\d+) took="([^"]+)"`)

// parseProgrammed reads the line that slipstream logs for each update.
func parseProgrammed(line string) (u programmed, ok bool) {
	m := programmedLine.FindStringSubmatch(line)
	if m == nil {
		return u, false
	}
	elements, err := strconv.Atoi(m[2])
	if err != nil {
		return u, false
	}
	took, err := time.ParseDuration(m[3])
	return programmed{kind: m[1], elements: elements, took: took}, err == nil
}

// updates returns how often the kernel has been programmed.
func (l *logbook) updates() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.programmed)
}

// wait waits for update n, counted from 0. It returns false when ctx ends before.
func (l *logbook) wait(ctx context.Context, n int) (programmed, bool) {
	for {
		l.mu.Lock()
		news := l.news
		if n < len(l.programmed) {
			defer l.mu.Unlock()
			return l.programmed[n], true
		}
		l.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return programmed{}, false
		}
	}
}

// trouble returns the errors and warnings.
func (l *logbook) trouble() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problems[:len(l.problems):len(l.problems)]
}

// tail returns the last lines.
func (l *logbook) tail(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines[max(0, len(l.lines)-n):]...)
}
