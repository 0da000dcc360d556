// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/process"
)

const (
	serviceNetwork = "10.96.0.0/12"
	podNetwork     = "10.244.0.0/16"
	address        = "127.0.0.1:10280"
	patience       = 2 * time.Minute // on a busy machine
)

// service is the manifest of Service number n, which has endpoints in three zones. Of two and more, the second
// is not ready.
func service(n, endpoints int) string {
	var s strings.Builder
	fmt.Fprintf(&s, `---
{apiVersion: v1, kind: Service, metadata: {name: web-%03[1]d, namespace: shop}, spec: {clusterIP: 10.%[2]d.%[3]d.%[4]d,
 clusterIPs: [10.%[2]d.%[3]d.%[4]d], ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {name: web-%03[1]d, namespace: shop, labels: {kubernetes.io/service-name: web-%03[1]d}},
 ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [`, n, 96, n/250, n%250+1)
	for i := range endpoints {
		at := n*endpoints + i
		fmt.Fprintf(&s, "{addresses: [10.244.%d.%d], zone: zone-%c, nodeName: node-%d, conditions: {ready: %t}},", at/250%250, at%250+1, 'a'+i%3, i%2, i != 1)
	}
	s.WriteString("]}\n")
	return s.String()
}

// startProxy starts a proxy that serves the page, with Services, and waits until it answers. The returned function changes the
// manifests.
func startProxy(t *testing.T, manifests string) (change func(manifests string)) {
	t.Helper()
	dir := t.TempDir()
	change = func(manifests string) {
		t.Helper()
		temporary := filepath.Join(dir, "next")
		if err := os.WriteFile(temporary, []byte(manifests), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temporary, filepath.Join(dir, "manifests", "all.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "manifests"), 0o755); err != nil {
		t.Fatal(err)
	}
	change(manifests)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(*slipstream, "run", "--manifests", filepath.Join(dir, "manifests"), "--hostname-override", "node-0",
		"--cluster-cidr", podNetwork, "--status-socket", filepath.Join(dir, "socket"), "--ui-bind-address", address)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := process.Start(cmd, func(start func() error) error { return start() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Close() // the next proxy starts once this one has ended
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the proxy's log:\n%s", text)
		}
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		r, err := http.Get("http://" + address + "/data/status")
		if err == nil {
			body, _ := io.ReadAll(r.Body)
			r.Body.Close()
			if strings.Contains(string(body), `"synced":true`) {
				return change
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the page does not answer: %v", err)
		}
	}
}

// traffic has clients make connections to Services until the test ends.
func traffic(t *testing.T, to ...string) {
	t.Helper()
	l, err := net.Listen("tcp", "0.0.0.0:8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	for i := range 4 * len(to) {
		go func() {
			block := make([]byte, 10_000)
			for ctx.Err() == nil {
				c, err := net.DialTimeout("tcp", to[i%len(to)], time.Second)
				if err == nil {
					for range 5 {
						_, _ = c.Write(block)
						_, _ = io.ReadFull(c, block)
						time.Sleep(50 * time.Millisecond)
					}
					_ = c.Close()
				} else {
					time.Sleep(time.Second)
				}
			}
		}()
	}
}
