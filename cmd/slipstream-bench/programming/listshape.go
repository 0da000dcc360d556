// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
)

// listShape is rules in the shape of kube-proxy's iptables mode, loaded by
// iptables-restore.
type listShape struct {
	cluster *cluster
	timeout time.Duration
	variant iptables.Variant
}

func newListShape(c *cluster, o *SyncOptions, v iptables.Variant) (*listShape, error) {
	l := &listShape{c, o.BaselineTimeout, v}
	for _, f := range c.families {
		if _, err := exec.LookPath(l.command(f, "restore")); err != nil {
			return nil, fmt.Errorf("%s is not installed", l.command(f, "restore"))
		}
	}
	return l, nil
}

// command is the variant's program for a family, such as ip6tables-nft-save.
func (l *listShape) command(f family, what string) string {
	ip := "ip"
	if f.name == ipv6.name {
		ip = "ip6"
	}
	return fmt.Sprintf("%stables-%s-%s", ip, l.variant, what)
}

func (l *listShape) all() (toolRun, error) { return l.restore((*ruleList).all) }

func (l *listShape) replace(c replacement) (toolRun, error) {
	return l.restore(func(r *ruleList) error { return r.replace(c) })
}

// restore restores what is written for each family, one after the other, as kube-proxy
// does.
func (l *listShape) restore(write func(*ruleList) error) (sum toolRun, err error) {
	for _, f := range l.cluster.families {
		run, err := runTool(l.timeout, func(file *os.File) error {
			out := bufio.NewWriterSize(file, 1<<20)
			if err := write(newRuleList(l.cluster, f, out)); err != nil {
				return err
			}
			return out.Flush()
		}, l.command(f, "restore"), "--noflush", "-w", "60")
		if err != nil {
			return sum, err
		}
		sum.add(run)
	}
	return sum, nil
}

var (
	toEndpoint = regexp.MustCompile(`(?m)^-A ` + endpointPrefix + `.* --to-destination (\S+)$`)
	toService  = regexp.MustCompile(`(?m)^-A ` + listChain + ` -d (\S+)/\d+ .* -j ` + servicePrefix)
)

func (l *listShape) addresses() (all []string, err error) {
	for _, f := range l.cluster.families {
		run, err := runTool(l.timeout, func(*os.File) error { return nil }, l.command(f, "save"), "-t", "nat")
		if err != nil {
			return nil, err
		}
		for _, line := range []*regexp.Regexp{toEndpoint, toService} {
			for _, found := range line.FindAllSubmatch(run.output, -1) {
				all = append(all, string(found[1]))
			}
		}
	}
	return all, nil
}
