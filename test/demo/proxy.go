// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// clusterCIDR covers the pods of all nodes.
const clusterCIDR = "10.244.0.0/16,fd00:244::/32"

// proxy is slipstream on one node. It may be started again after its end.
type proxy struct {
	*lab.Program
	node *lab.Node
}

// start starts slipstream and waits until it has programmed the kernel.
func (p *proxy) start(ctx context.Context, binary string, m *manifests) (u update, err error) {
	begin := time.Now()
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.Program, err = p.node.StartSlipstream(patient, m.logs, binary, m.dir, "--cluster-cidr", clusterCIDR, "-v", "2"); err != nil {
		return u, err
	}
	return p.updateSince(ctx, begin)
}

// log is what all its processes have logged.
func (p *proxy) log() logbook { return logbook(p.Log()) }

// updateSince waits for the first update of the kernel since a time.
func (p *proxy) updateSince(ctx context.Context, t time.Time) (u update, err error) {
	if !await(ctx, func() bool {
		all := p.log().updates()
		i := slices.IndexFunc(all, func(u update) bool { return !u.done.Before(t) })
		if i >= 0 {
			u = all[i]
		}
		return i >= 0
	}) {
		return u, fmt.Errorf("slipstream on %s has not programmed the kernel within %v", p.node.Name(), patience)
	}
	return u, nil
}

// update is one update of the kernel, as slipstream logged it.
type update struct {
	took time.Duration
	done time.Time
}

// logbook records slipstream's log.
type logbook string

var programmedLine = regexp.MustCompile(`(?m)^I(\S+ \S+) .*"Programmed the kernel" .*took="([^"]+)"`)

// updates returns all updates so far.
func (l logbook) updates() (all []update) {
	year := time.Now().Format("2006") // klog leaves it out
	for _, m := range programmedLine.FindAllStringSubmatch(string(l), -1) {
		done, err1 := time.ParseInLocation("20060102 15:04:05", year+m[1], time.Local)
		took, err2 := time.ParseDuration(m[2])
		if err1 == nil && err2 == nil {
			all = append(all, update{took, done})
		}
	}
	return all
}

// warnings returns the lines that are more than information: klog's lines begin with
// their severity, and a line without klog's header is a process's last one.
func (l logbook) warnings() []string {
	return slices.DeleteFunc(strings.Split(string(l), "\n"), func(line string) bool { return line == "" || line[0] == 'I' })
}
