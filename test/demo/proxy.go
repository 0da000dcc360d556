// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// clusterCIDR covers the pods of all nodes.
const clusterCIDR = "10.244.0.0/16,fd00:244::/32"

// proxy is slipstream on one node. It may be started again after its end.
type proxy struct {
	node    *lab.Node
	process *lab.Process
	log     logbook // of all its processes
}

// start starts slipstream and waits until it has programmed the kernel.
func (p *proxy) start(ctx context.Context, binary, dir string) (update, error) {
	begin := time.Now()
	cmd := exec.Command(binary, "run", "--manifests", dir, "--hostname-override", p.node.Name(),
		"--cluster-cidr", clusterCIDR, "-v", "2")
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	var err error
	if p.process, err = p.node.Start(cmd); err != nil {
		return update{}, err
	}
	return p.updateSince(ctx, begin)
}

// updateSince waits for the first update of the kernel since a time.
func (p *proxy) updateSince(ctx context.Context, t time.Time) (u update, err error) {
	if !await(ctx, func() bool {
		all := p.log.updates()
		i := slices.IndexFunc(all, func(u update) bool { return !u.read.Before(t) })
		if i >= 0 {
			u = all[i]
		}
		return i >= 0
	}) {
		return u, fmt.Errorf("slipstream on %s has not programmed the kernel within %v", p.node.Name(), patience)
	}
	return u, nil
}

// update is one update of the kernel.
type update struct {
	took time.Duration // as slipstream logged it
	read time.Time     // when the log line was read: a little after the update
}

// logbook keeps what a slipstream process logs.
type logbook struct {
	mu    sync.Mutex
	rest  []byte // of a line that is not complete
	lines []string
	all   []update
}

var programmedLine = regexp.MustCompile(`"Programmed the kernel" .*took="([^"]+)"`)

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
		l.rest = rest
		l.lines = append(l.lines, string(line))
		if m := programmedLine.FindSubmatch(line); m != nil {
			if took, err := time.ParseDuration(string(m[1])); err == nil {
				l.all = append(l.all, update{took, now})
			}
		}
	}
}

// updates returns all updates so far.
func (l *logbook) updates() []update {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// warnings returns the lines that are more than information: klog's lines begin with
// their severity, and a line without klog's header is a process's last one.
func (l *logbook) warnings() []string {
	return slices.DeleteFunc(l.tail(math.MaxInt), func(line string) bool { return line == "" || line[0] == 'I' })
}

// tail returns the last n lines.
func (l *logbook) tail(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines[max(0, len(l.lines)-n):])
}
