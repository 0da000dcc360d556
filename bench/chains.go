// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// chains is the baseline, measured: the same Services as a ruleset in the shape
// of kube-proxy's nftables mode, programmed by the nft command.
type chains struct {
	cluster *cluster
	timeout time.Duration
	peak    int64
}

// newChains fails when there is no baseline here, and says why.
func newChains(o *SyncOptions) (*chains, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, errors.New("the nft command is not installed")
	}
	// The commands are to end with this process; the kernel goes by the
	// thread that has started them.
	runtime.LockOSThread()
	return &chains{cluster: newCluster(o), timeout: o.BaselineTimeout}, nil
}

func (c *chains) close() error { return nil }

func (c *chains) do(q request) (r reply, err error) {
	switch q.Step {
	case stepCold:
		r.Load, err = c.cold()
	case stepSplit:
		r.Load, err = c.split()
	case stepReplace:
		all := &samples{}
		r.Series = map[string]*samples{endpointReplaced: all}
		for range q.Repetitions {
			change, _ := c.cluster.replacePod()
			var run nftRun
			if run, err = c.nft(func(r *ruleset) error { return r.replace(change) }); err != nil {
				break
			}
			all.append(&samples{Took: []time.Duration{run.took}, Elements: []int{0}, Bytes: []int{run.bytes}, CPU: run.cpu})
		}
	case stepMemory:
		r.Memory = &Memory{PeakBytes: c.peak}
	case stepVerify:
		err = c.verify()
	default:
		err = fmt.Errorf("no step %q", q.Step)
	}
	if errors.Is(err, errTimeout) {
		return reply{Unavailable: err.Error()}, nil
	}
	return r, err
}

// cold loads everything as one transaction, as kube-proxy does.
func (c *chains) cold() (*Load, error) {
	run, err := c.nft((*ruleset).all)
	return &Load{TotalMS: millis(run.took), CPUMS: millis(run.cpu), Bytes: run.bytes}, err
}

// splitServices is how many Services split loads in each transaction.
const splitServices = 1000

// split loads everything again, in several transactions. In each transaction,
// the kernel walks what it has of that transaction for every rule that brings a
// map of its own (__nft_set_trans_bind), so many small ones take less time. What
// is programmed is incomplete until the last is done.
func (c *chains) split() (*Load, error) {
	_, err := c.nft(func(r *ruleset) error {
		r.printf("add table %s\ndelete table %s\n", r.hook(), r.hook())
		return r.err
	})
	if err != nil {
		return nil, err
	}
	load, deadline := &Load{}, time.Now().Add(c.timeout)
	services := slices.Collect(c.cluster.each())
	for part := range slices.Chunk(services, splitServices) {
		if c.timeout > 0 && time.Now().After(deadline) {
			return nil, fmt.Errorf("%w (more than %s)", errTimeout, c.timeout)
		}
		run, err := c.nft(func(r *ruleset) error {
			if load.TotalMS == 0 {
				r.base()
			}
			return r.some(slices.Values(part))
		})
		if err != nil {
			return nil, err
		}
		load.TotalMS += millis(run.took)
		load.CPUMS += millis(run.cpu)
		load.Bytes += run.bytes
	}
	return load, nil
}

// nft runs a script that is written for each family.
func (c *chains) nft(write func(*ruleset) error) (nftRun, error) {
	run, err := nft(c.timeout, func(f *os.File) error {
		out := bufio.NewWriterSize(f, 1<<20)
		for _, family := range c.cluster.families {
			if err := write(&ruleset{cluster: c.cluster, family: family, out: out}); err != nil {
				return err
			}
		}
		return out.Flush()
	}, "-f", "-")
	c.peak = max(c.peak, run.peak)
	return run, err
}

var (
	dnatLine    = regexp.MustCompile(`(?m)^\s*meta l4proto tcp dnat to (\S+)$`)
	serviceLine = regexp.MustCompile(`(\S+) \. tcp \. 80 comment "[^"]*" : goto service-`)
)

// verify compares the addresses that the kernel has with those that were meant.
func (c *chains) verify() error {
	run, err := nft(c.timeout, func(*os.File) error { return nil }, "list", "ruleset")
	if err != nil {
		return err
	}
	var want, got []string
	for key, target := range c.cluster.content().Frontends {
		want = append(want, key.Addr().String())
		for _, b := range target.Backends {
			want = append(want, b.String())
		}
	}
	for _, line := range []*regexp.Regexp{dnatLine, serviceLine} {
		for _, m := range line.FindAllSubmatch(run.output, -1) {
			got = append(got, string(m[1]))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		return fmt.Errorf("the kernel has %d addresses where %d others were meant: got %.200s, want %.200s",
			len(got), len(want), strings.Join(got, " "), strings.Join(want, " "))
	}
	return nil
}
