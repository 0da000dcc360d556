// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"k8s.io/klog/v2"
)

var (
	proxyFlag = flag.String("proxy", string(proxies.Slipstream), fmt.Sprint("the proxy to test, one of ", proxies.AllKinds))
	program   = flag.String("slipstream", "", "`path` of the command slipstream; built from this checkout by default")
	modeFlag  = flag.String("mode", "", "the mode that Slipstream is tested in, if not nftables")
	keepLogs  = flag.String("logs", "", "an existing directory where the proxies' logs stay")
)

// nodes is how many nodes the cluster has.
const nodes = 3

// shared is the cluster of all tests that do not need another; starting one takes seconds.
var shared struct {
	once   sync.Once
	system *system
	dir    string // of the cluster and the command
	err    error
}

// slipstream is the command of this checkout, which is built for the first test that needs it.
var slipstream struct {
	once sync.Once
	path string
	err  error
}

func TestMain(m *testing.M) {
	flag.Parse()
	// The endpointslice controller's, and client-go's: faults are on purpose here.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	var err error
	if shared.dir, err = os.MkdirTemp("", "slipstream-cluster-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if shared.system != nil {
		if err := shared.system.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "closing the cluster:", err)
			code = 1
		}
	}
	os.RemoveAll(shared.dir)
	printFailures(os.Stderr)
	os.Exit(code)
}

// cluster returns the cluster, which is started for the first test.
func cluster(t *testing.T) *system {
	t.Helper()
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables, kerneltest.NFTBinary)
	shared.once.Do(func() {
		log := func(format string, args ...any) { fmt.Fprintf(os.Stderr, "cluster: "+format+"\n", args...) }
		shared.system, shared.err = newSystem(context.Background(), nodes, upstream.ControlPlaneOptions{Dir: shared.dir, Log: log})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.system
}

// startCluster starts a cluster for one test.
func startCluster(t *testing.T, o upstream.ControlPlaneOptions) *system {
	t.Helper()
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables, kerneltest.NFTBinary)
	o.Dir, o.Log = t.TempDir(), t.Logf
	s, err := newSystem(t.Context(), nodes, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// slipstreamBinary is the path of the command.
func slipstreamBinary(t *testing.T) string {
	t.Helper()
	slipstream.once.Do(func() {
		if slipstream.path, slipstream.err = filepath.Abs(*program); *program == "" {
			slipstream.path, slipstream.err = proxies.BuildSlipstream(context.Background(), shared.dir)
		}
	})
	if slipstream.err != nil {
		t.Fatal(slipstream.err)
	}
	return slipstream.path
}
