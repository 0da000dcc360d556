// SPDX-License-Identifier: Apache-2.0

// Command demo shows slipstream at work on this machine's kernel: two nodes made
// of network namespaces, a slipstream process on each, real Services and real
// connections. It checks everything that it claims. Its exit status is 1 if a claim
// did not hold.
//
//	go build -o bin/slipstream ./cmd/slipstream
//	go run ./test/demo -slipstream bin/slipstream
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"k8s.io/apimachinery/pkg/util/wait"
)

// patience bounds the wait for something that usually takes milliseconds.
const patience = 3 * time.Minute

func main() {
	binary := flag.String("slipstream", "bin/slipstream", "the slipstream `binary`")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	// The signals stay caught until the end: a second Ctrl-C, or the end of a reader
	// of the output, must not interrupt the clean-up.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	if err := run(ctx, *binary, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo is one run. Its steps build on each other.
type demo struct {
	*report
	binary    string // absolute path
	version   string // as the binary prints it
	network   *network
	manifests *manifests
	proxies   []*proxy // one on each node

	web, orders []*flow // one of each client; those to orders are refused for a while
	kinds       []*flow // of the step "reach"
	streams     []*lab.Stream
}

// run runs the demo. The error says why it could not go on, or that claims did not
// hold.
func run(ctx context.Context, binary string, out io.Writer) (err error) {
	d := &demo{report: &report{ctx: ctx, out: out}}
	if d.binary, err = filepath.Abs(binary); err != nil {
		return fmt.Errorf("-slipstream: %w", err)
	}
	if _, err := os.Stat(d.binary); err != nil {
		return fmt.Errorf("-slipstream: %s does not exist; 'go build -o bin/slipstream ./cmd/slipstream' builds it", binary)
	}
	version, err := exec.CommandContext(ctx, d.binary, "version").Output()
	if err != nil {
		return fmt.Errorf("-slipstream: %s version: %w", binary, err)
	}
	d.version = strings.TrimSpace(string(version))
	if d.manifests, err = newManifests(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.manifests.remove()) }()
	if d.network, err = newNetwork(d.manifests); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.network.lab.Close()) }()
	if _, err := tables(d.network.nodes[0]); err != nil {
		return fmt.Errorf("this kernel has no nf_tables (CONFIG_NF_TABLES): %w", err)
	}

	for _, step := range []func(context.Context) error{
		d.start, d.reach, d.scaleUp, d.scaleDown, d.noEndpoints, d.newEndpoint, d.restart, d.cleanup, d.summary,
	} {
		err := step(ctx)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			d.printLogs()
			return err
		}
	}
	if len(d.broken) > 0 {
		d.printLogs()
		return fmt.Errorf("%d claims did not hold", len(d.broken))
	}
	return nil
}

// printLogs prints the end of each proxy's log.
func (d *demo) printLogs() {
	for _, p := range d.proxies {
		if p.Program == nil {
			continue
		}
		for line := range strings.Lines(lab.Tail(p.Log(), 12)) {
			d.line(faint.Sprintf("%s: %s", p.node.Name(), strings.TrimSpace(line)))
		}
	}
}

// pause lets connections flow for a while.
func pause(ctx context.Context, long time.Duration) {
	select {
	case <-time.After(long):
	case <-ctx.Done():
	}
}

// await waits until a condition holds. It returns false after patience, or when ctx
// ends before.
func await(ctx context.Context, holds func() bool) bool {
	const pause = 2 * time.Millisecond
	return wait.PollUntilContextTimeout(ctx, pause, patience, true, func(context.Context) (bool, error) { return holds(), nil }) == nil
}
