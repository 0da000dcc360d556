// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"golang.org/x/sys/unix"
)

// baseline is the same Services as rules in the shape of kube-proxy's, in its mode of the
// same name, programmed by the command that it uses.
type baseline struct {
	cluster   *cluster.Cluster
	shape     shape
	namespace *lab.Namespace
	timeout   time.Duration
	peak      float64 // resident memory of a command, in bytes, with this process's when it started, some 20 MB
}

var (
	errNotInstalled = errors.New("is not installed")
	errTimeout      = errors.New("it took too long")
)

func newBaseline(o *Options) (*baseline, error) {
	b := &baseline{cluster: o.newCluster(), shape: newShape(o), timeout: o.BaselineTimeout}
	for _, f := range b.cluster.Families {
		if name := command(f, b.shape.load)[0]; !installed(name) {
			return nil, fmt.Errorf("the command %s %w", name, errNotInstalled)
		}
	}
	var err error
	b.namespace, err = lab.NewNamespace()
	return b, err
}

func installed(command string) bool {
	_, err := exec.LookPath(command)
	return err == nil
}

func (b *baseline) close() error { return b.namespace.Close() }

func (b *baseline) load(ctx context.Context, all bench.Samples) error {
	u, err := b.run(ctx, "all", script{some: slices.Collect(b.cluster.Each()), First: true})
	if err == nil {
		all.Add(coldStart, float64(u.took))
		all.Add(coldStart+"_bytes", float64(u.bytes))
	}
	return err
}

// splitServices is how many Services loadSplit has in each transaction.
const splitServices = 1000

// loadSplit measures a cold start of the nftables shape in several transactions, which take
// less time: for each rule with a map of its own the kernel walks the transaction so far
// (__nft_set_trans_bind). The rules are incomplete until the last is done.
func (b *baseline) loadSplit(ctx context.Context, all bench.Samples) error {
	if _, err := b.run(ctx, "delete", script{}); err != nil {
		return err
	}
	sum := time.Duration(0)
	for part := range slices.Chunk(slices.Collect(b.cluster.Each()), splitServices) {
		if b.timeout > 0 && sum > b.timeout {
			return fmt.Errorf("%w (more than %s)", errTimeout, b.timeout)
		}
		u, err := b.run(ctx, "all", script{some: part, First: sum == 0})
		if err != nil {
			return err
		}
		sum += u.took
	}
	all.Add(coldSplit, float64(sum))
	return nil
}

func (b *baseline) replace(ctx context.Context, all bench.Samples) (time.Duration, error) {
	u, err := b.run(ctx, "replace", script{replaced: b.cluster.ReplaceRandom()})
	if err == nil {
		all.Add(endpointReplaced, float64(u.took))
		all.Add(endpointReplaced+cpuSuffix, float64(u.cpu))
	}
	return u.took, err
}

// verify compares the addresses that the kernel has with those that it should have.
func (b *baseline) verify(ctx context.Context) error {
	var want []string
	for i := range b.cluster.Each() {
		for _, f := range b.cluster.Families {
			want = append(want, f.ClusterIP(i).String())
			for _, pod := range b.cluster.Pods(i) {
				want = append(want, f.PodAddr(pod).String())
			}
		}
	}
	slices.Sort(want)
	// The kernel leaves elements out while it resizes a set, for some milliseconds.
	diff, err := dataplane.Lasting(ctx, func() (string, error) {
		var got []string
		for _, f := range b.cluster.Families {
			args := command(f, b.shape.list)
			out, err := b.namespace.Run(ctx, args[0], args[1:]...)
			if err != nil {
				return "", err
			}
			for _, found := range b.shape.address.FindAllSubmatch(out, -1) {
				got = append(got, string(found[1])+string(found[2])) // one of them matches
			}
		}
		slices.Sort(got)
		if slices.Equal(want, got) {
			return "", nil
		}
		return fmt.Sprintf("the kernel has %d addresses where %d others were meant: got %.200s, want %.200s",
			len(got), len(want), strings.Join(got, " "), strings.Join(want, " ")), nil
	})
	if err == nil && diff != "" {
		err = errors.New(diff)
	}
	return err
}

type usage struct {
	took, cpu time.Duration
	bytes     int64 // of the scripts
}

// run writes one of the shape's templates for each family, and runs the command with it.
// Writing is not measured.
func (b *baseline) run(ctx context.Context, name string, s script) (sum usage, err error) {
	s.cluster, s.shape = b.cluster, &b.shape
	for _, s.Family = range b.cluster.Families {
		if err := b.runFamily(ctx, name, &s, &sum); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

func (b *baseline) runFamily(ctx context.Context, name string, s *script, sum *usage) error {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("file in memory: %w", err)
	}
	input := os.NewFile(uintptr(fd), "script")
	defer input.Close()
	w := bufio.NewWriterSize(input, 1<<20)
	err = errors.Join(b.shape.rules.ExecuteTemplate(w, name, s), w.Flush())
	n, sought := input.Seek(0, 1)
	_, back := input.Seek(0, 0)
	if err := errors.Join(err, sought, back); err != nil {
		return err
	}
	sum.bytes += n
	if b.timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, b.timeout, errTimeout)
		defer cancel()
	}
	args := command(s.Family, b.shape.load)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var problems bytes.Buffer
	cmd.Stdin, cmd.Stderr = input, &problems
	start := time.Now()
	p, err := b.namespace.Start(cmd)
	if err == nil {
		err = p.Wait()
	}
	sum.took += time.Since(start)
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		return fmt.Errorf("%w (more than %s)", errTimeout, b.timeout)
	case err != nil:
		line, _, _ := strings.Cut(strings.TrimSpace(problems.String()), "\n")
		return fmt.Errorf("%s: %w: %.300s", args[0], err, line)
	}
	sum.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if rusage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		b.peak = max(b.peak, float64(rusage.Maxrss<<10))
	}
	return nil
}
