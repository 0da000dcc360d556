// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"time"
)

// mapShape is rulesets in the shape of kube-proxy's nftables mode, loaded by nft.
type mapShape struct {
	cluster *cluster
	timeout time.Duration
}

func newMapShape(c *cluster, o *SyncOptions) (*mapShape, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, errors.New("the nft command is not installed")
	}
	return &mapShape{c, o.BaselineTimeout}, nil
}

func (m *mapShape) all() (toolRun, error) { return m.nft((*ruleset).all) }

func (m *mapShape) replace(c replacement) (toolRun, error) {
	return m.nft(func(r *ruleset) error { return r.replace(c) })
}

// splitServices is how many Services parts loads in each transaction.
const splitServices = 1000

// parts loads everything again, in several transactions. In each transaction,
// the kernel walks what it has of that transaction for every rule that brings a
// map of its own (__nft_set_trans_bind), so many small ones take less time. What
// is programmed is incomplete until the last is done.
func (m *mapShape) parts() (sum toolRun, err error) {
	_, err = m.nft(func(r *ruleset) error {
		r.printf("add table %s\ndelete table %s\n", r.hook(), r.hook())
		return r.err
	})
	if err != nil {
		return sum, err
	}
	deadline := time.Now().Add(m.timeout)
	services := slices.Collect(m.cluster.each())
	for part := range slices.Chunk(services, splitServices) {
		if m.timeout > 0 && time.Now().After(deadline) {
			return sum, fmt.Errorf("%w (more than %s)", errTimeout, m.timeout)
		}
		run, err := m.nft(func(r *ruleset) error {
			if sum.took == 0 {
				r.base()
			}
			return r.some(slices.Values(part))
		})
		if err != nil {
			return sum, err
		}
		sum.add(run)
	}
	return sum, nil
}

// nft runs a script that is written for each family.
func (m *mapShape) nft(write func(*ruleset) error) (toolRun, error) {
	return runTool(m.timeout, func(f *os.File) error {
		out := bufio.NewWriterSize(f, 1<<20)
		for _, family := range m.cluster.families {
			if err := write(&ruleset{cluster: m.cluster, family: family, out: out}); err != nil {
				return err
			}
		}
		return out.Flush()
	}, "nft", "-f", "-")
}

var (
	dnatLine    = regexp.MustCompile(`(?m)^\s*meta l4proto tcp dnat to (\S+)$`)
	serviceLine = regexp.MustCompile(`(\S+) \. tcp \. 80 comment "[^"]*" : goto service-`)
)

func (m *mapShape) addresses() (all []string, err error) {
	run, err := runTool(m.timeout, func(*os.File) error { return nil }, "nft", "list", "ruleset")
	for _, line := range []*regexp.Regexp{dnatLine, serviceLine} {
		for _, found := range line.FindAllSubmatch(run.output, -1) {
			all = append(all, string(found[1]))
		}
	}
	return all, err
}
