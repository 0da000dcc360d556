// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// streams are the requests of a proxy, but for its Node and for ServiceCIDRs (KEP-3157).
var streams = []string{
	"/api/v1/services?labelSelector=%21service.kubernetes.io/service-proxy-name" + initial,
	"/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io/headless" + initial,
}

const initial = "&watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"

// read reads the objects that a proxy needs, and does nothing with them, with gzip unless PLAIN=1. It prints "complete" when
// it has all.
func read(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.DisableCompression = os.Getenv("PLAIN") != ""
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	complete, failed := make(chan bool), make(chan error)
	for _, path := range streams {
		go func() { failed <- follow(client, config.Host+path, complete) }()
	}
	for n := 0; ; {
		select {
		case <-complete:
			if n++; n == len(streams) {
				fmt.Println("complete")
			}
		case err := <-failed:
			return err
		}
	}
}

// follow reads a stream until it ends, and says when its first part is complete.
func follow(client *http.Client, url string, complete chan<- bool) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/vnd.kubernetes.protobuf;stream=watch")
	response, err := client.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %v %v", url, response, err)
	}
	for in, event := bufio.NewReaderSize(response.Body, 64<<10), []byte(nil); ; {
		size := make([]byte, 4)
		if _, err := io.ReadFull(in, size); err != nil {
			return err
		}
		event = append(event[:0], make([]byte, binary.BigEndian.Uint32(size))...)
		if _, err := io.ReadFull(in, event); err != nil {
			return err
		}
		if bytes.HasPrefix(event, []byte("\n\bBOOKMARK")) && bytes.Contains(event, []byte("initial-events-end")) {
			complete <- true
		}
	}
}

// BenchmarkReader measures a client that only reads, the least that a proxy takes, in turns with Slipstream: nanoseconds
// and bytes, medians, with SERVICES=10000.
func BenchmarkReader(b *testing.B) {
	check := failing(b)
	e := filled(b, check, 2)
	all := bench.NewSamples(2)
	for range b.N {
		check(e.run(b.Context(), subject{proxies.Slipstream, e.slipstream}, all[0]))
		m, err := e.newMeasurement(b.Context(), subject{"client", ""})
		check(err)
		m.samples = all[1]
		m.reads(b, check)
		m.changesRead(b, check)
		check(m.node.remove(b.Context()))
	}
	for _, s := range []string{started.Name, startCPU.Name, changeCPU.Name, resting.Name, peakStart.Name} {
		b.ReportMetric(bench.Median(all[0][s]), s+"-slipstream")
		b.ReportMetric(bench.Median(all[1][s]), s+"-reader")
	}
}

// failing returns what ends a benchmark if an error is not nil.
func failing(b *testing.B) func(error) {
	return func(err error) {
		if b.Helper(); err != nil {
			b.Fatal(err)
		}
	}
}

// filled makes an environment with SERVICES=10000, in which each of several subjects can be measured b.N times.
func filled(b *testing.B, check func(error), subjects int) *environment {
	kerneltest.Require(b, kerneltest.Root, kerneltest.NFTables)
	check(build())
	o, err := parse(Scale, "--services", cmp.Or(os.Getenv("SERVICES"), "10000"), "--changes", "24", "--bursts", "1", "--budget", "20s")
	check(err)
	o.log, o.slipstream, o.dir = b.Logf, built+"/slipstream", b.TempDir()
	e, err := newEnvironment(b.Context(), o, subjects*b.N)
	check(err)
	b.Cleanup(func() { check(e.close()) })
	check(e.fill(b.Context(), o.most()))
	return e
}

// reads starts a reader on the node, and waits until it has all objects.
func (m *measurement) reads(b *testing.B, check func(error)) {
	bench.Quiet(b.Context())
	access, err := m.site.Plane.NewAccess(b.Context(), m.dir, "reader-"+m.node.Name())
	check(err)
	begin := time.Now()
	program, err := m.node.StartProgram(m.dir, "reading-"+m.node.Name(), "/proc/self/exe", "read", access.Kubeconfig)
	check(err)
	m.proxy = &proxies.Proxy{Program: program}
	for !strings.Contains(program.Log(), "complete") {
		check(bench.Sleep(b.Context(), time.Millisecond))
	}
	m.samples.Add(started.Name, float64(time.Since(begin)))
}

// changesRead measures what a reader takes for changes, and ends it.
func (m *measurement) changesRead(b *testing.B, check func(error)) {
	check(m.startUsage(b.Context()))
	check(m.atRest(b.Context()))
	before, err := bench.Used(m.proxy.PID())
	check(err)
	begin := time.Now()
	for n := range m.Changes / 2 {
		check(bench.Sleep(b.Context(), pause))
		m.replaceFirst(m.Single[n%len(m.Single)])
		check(m.writeFirst(b.Context(), m.Single[n%len(m.Single)]))
	}
	after, err := m.usedWhenCalm(b.Context(), m.proxy.PID())
	check(err)
	m.samples.Add(changeCPU.Name, max(float64(after-before)-m.resting*float64(time.Since(begin)), 0)/float64(m.Changes/2))
	check(m.proxy.Close())
}
