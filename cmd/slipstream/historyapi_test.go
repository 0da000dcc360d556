// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"k8s.io/client-go/util/keyutil"
)

var historyTools = flag.String("history-tools", "", "a folder with etcd and kube-apiserver: TestHistory writes objects to a real API server, which it kills and restores")

// historyAPI is a real API server, on loopback addresses of the node.
type historyAPI struct {
	*historian
	dir       string
	etcd, api *lab.Program
	backup    map[string][]int // the endpoints in the backup of etcd
}

const historyToken = "history"

func (x *historian) startAPI() {
	a := &historyAPI{historian: x, dir: x.t.TempDir()}
	x.api = a
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	x.check(err)
	x.check(os.WriteFile(a.file("key"), key, 0o600))
	x.check(os.WriteFile(a.file("tokens"), []byte(historyToken+",history,1,system:masters\n"), 0o600))
	x.kubeconfig = a.file("kubeconfig")
	x.check(os.WriteFile(x.kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: a, users: [{name: a, user: {token: `+historyToken+`}}],
clusters: [{name: a, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}], contexts: [{name: a, context: {cluster: a, user: a}}]}`), 0o600))
	a.startPrograms()
	x.t.Cleanup(a.stopPrograms)
	a.apply("/api/v1/nodes/n1", "{apiVersion: v1, kind: Node, metadata: {name: n1}}")
}

func (a *historyAPI) file(name string) string { return filepath.Join(a.dir, name) }

func (a *historyAPI) startPrograms() {
	a.startEtcd()
	a.startServer()
}

func (a *historyAPI) startEtcd() {
	var err error
	a.etcd, err = a.node.StartProgram(a.dir, "etcd", filepath.Join(*historyTools, "etcd"), "--data-dir="+a.file("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379")
	a.check(err)
	a.check(a.etcd.Await(a.t.Context(), func(context.Context) error {
		_, err := a.revision()
		return err
	}))
}

func (a *historyAPI) startServer() {
	var err error
	a.api, err = a.node.StartProgram(a.dir, "kube-apiserver", filepath.Join(*historyTools, "kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=127.0.0.1", "--secure-port=6443", "--cert-dir="+a.file("certificates"), "--token-auth-file="+a.file("tokens"),
		"--authorization-mode=AlwaysAllow", "--service-cluster-ip-range=10.96.0.0/16", "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://history.invalid", "--service-account-key-file="+a.file("key"), "--service-account-signing-key-file="+a.file("key"),
		"--disable-admission-plugins=ServiceAccount")
	a.check(err)
	a.check(a.api.Await(a.t.Context(), func(context.Context) error {
		code, said, err := a.request(http.MethodGet, "/readyz", "")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/readyz: %d %s", code, said)
		}
		return err
	}))
}

func (a *historyAPI) stopPrograms() {
	a.check(a.api.Close())
	a.check(a.etcd.Close())
}

func (a *historyAPI) request(method, path, body string) (code int, said string, err error) {
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: a.node.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	r, err := http.NewRequest(method, "https://127.0.0.1:6443"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+historyToken)
	r.Header.Set("Content-Type", "application/apply-patch+yaml")
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(all), err
}

func (a *historyAPI) apply(path, object string) (said string) {
	a.t.Helper()
	code, said, err := a.request(http.MethodPatch, path+"?fieldManager=history&force=true", object)
	if err != nil || code != http.StatusOK && code != http.StatusCreated {
		a.t.Fatalf("%s: %d %s %v", path, code, said, err)
	}
	return said
}

var etcdRevision = regexp.MustCompile(`"revision": *"(\d+)"`)

// ask sends a request to etcd, and returns the revision in its answer.
func (a *historyAPI) ask(path, body string) (n int, err error) {
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: a.node.DialContext}}
	answer, err := client.Post("http://127.0.0.1:2379"+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	found := etcdRevision.FindSubmatch(all)
	if err != nil || answer.StatusCode != http.StatusOK || found == nil {
		return 0, fmt.Errorf("etcd: %s: %d %s %v", path, answer.StatusCode, all, err)
	}
	return strconv.Atoi(string(found[1]))
}

// revision makes a change in etcd, and returns its revision.
func (a *historyAPI) revision() (int, error) {
	return a.ask("/v3/kv/put", `{"key": "c2xpcHN0cmVhbQ=="}`)
}

// write writes the objects of a manifest. Those of a kind arrive in their order.
func (a *historyAPI) write(manifest string) {
	a.t.Helper()
	for document := range strings.SplitSeq(manifest, "---\n") {
		_, rest, named := strings.Cut(document, "metadata: {name: ")
		name := rest[:max(strings.IndexAny(rest, ",}"), 0)]
		switch {
		case !named:
		case strings.Contains(document, "kind: EndpointSlice"):
			a.apply("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/"+name, document)
		default:
			a.apply("/api/v1/namespaces/default/services/"+name, document)
		}
	}
}

// fail kills the API server, or restores a backup of etcd: objects are again what they were.
func (a *historyAPI) fail(do string) {
	switch {
	case do == "kill the API server":
		a.check(a.api.Close())
		a.startServer()
	case a.backup == nil:
		a.stopPrograms()
		a.check(os.CopyFS(a.file("backup"), os.DirFS(a.file("etcd"))))
		a.backup = map[string][]int{}
		for service, servers := range a.serving {
			a.backup[service] = servers
		}
		a.startPrograms()
	default:
		before, err := a.revision()
		a.check(err)
		a.stopPrograms()
		a.check(os.RemoveAll(a.file("etcd")))
		a.check(os.Rename(a.file("backup"), a.file("etcd")))
		a.serving, a.backup = a.backup, nil
		a.record() // the proxy may have these before it has those that are written next
		a.startEtcd()
		// As "etcdutl snapshot restore --bump-revision --mark-compacted" does, before there is an API server: one with lower
		// revisions lets a watch resume at a version to come, and what is the same in the backup and in later writes is no event.
		now := 0
		for now <= before {
			now, err = a.revision()
			a.check(err)
		}
		_, err = a.ask("/v3/kv/compaction", fmt.Sprintf(`{"revision": "%d"}`, now))
		a.check(err)
		a.startServer()
	}
}

// verify compares the kernel with the API server's objects.
func (x *historian) verify(args ...string) (string, error) {
	if x.api == nil {
		return x.crashes.verify(args...)
	}
	var out bytes.Buffer
	cmd := x.command(append([]string{"verify", "--kubeconfig", x.kubeconfig, "--hostname-override", "n1"}, args...)...)
	cmd.Stdout = &out
	p, err := x.node.Start(cmd)
	x.check(err)
	err = p.Wait()
	return out.String(), err
}
