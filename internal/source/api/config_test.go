// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	componentbase "k8s.io/component-base/config/v1alpha1"
)

// kubeconfig is one as kubeadm gives to kube-proxy.
const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- cluster: {server: "https://192.0.2.1:6443", insecure-skip-tls-verify: true}
  name: default
contexts:
- context: {cluster: default, namespace: default, user: default}
  name: default
current-context: default
users:
- name: default
  user: {tokenFile: token}
`

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if name == "config" {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "token"), []byte("secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestClientConfig(t *testing.T) {
	path := write(t, "config", kubeconfig)
	c, err := ClientConfig(componentbase.ClientConnectionConfiguration{Kubeconfig: path}, "", "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "https://192.0.2.1:6443" || c.BearerTokenFile != filepath.Join(filepath.Dir(path), "token") {
		t.Errorf("host %q, token file %q", c.Host, c.BearerTokenFile)
	}
	if c.ContentType != "application/vnd.kubernetes.protobuf" || c.QPS != 5 || c.Burst != 10 {
		t.Errorf("content type %q, qps %v, burst %v", c.ContentType, c.QPS, c.Burst)
	}
	if !strings.HasPrefix(c.UserAgent, "slipstream/1.2.3 (") {
		t.Errorf("user agent %q", c.UserAgent)
	}

	c, err = ClientConfig(componentbase.ClientConnectionConfiguration{
		Kubeconfig: path, ContentType: "application/json", AcceptContentTypes: "application/json", QPS: -1, Burst: 7,
	}, "http://192.0.2.2:8080", "")
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "http://192.0.2.2:8080" || c.ContentType != "application/json" || c.AcceptContentTypes != "application/json" || c.QPS != -1 || c.Burst != 7 {
		t.Errorf("got %+v", c)
	}
}

func TestClientConfigErrors(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
	const flag = "--kubeconfig (clientConnection.kubeconfig): "
	for _, c := range []struct {
		name       string
		connection componentbase.ClientConnectionConfiguration
		master     string
		want       []string // parts
	}{
		{"nowhere", componentbase.ClientConnectionConfiguration{}, "", []string{"--kubeconfig (clientConnection.kubeconfig)", "--master", "KUBERNETES_SERVICE_HOST"}},
		{"no file", componentbase.ClientConnectionConfiguration{Kubeconfig: "/no/such"}, "", []string{flag + "/no/such: ", "no such file"}},
		{"no YAML", componentbase.ClientConnectionConfiguration{Kubeconfig: write(t, "a", "{")}, "", []string{flag, "/a: "}},
		{"empty", componentbase.ClientConnectionConfiguration{Kubeconfig: write(t, "b", "")}, "", []string{flag, "/b: "}},
		{"no such context", componentbase.ClientConnectionConfiguration{Kubeconfig: write(t, "c", strings.Replace(kubeconfig, "current-context: default", "current-context: other", 1))}, "",
			[]string{flag, "other"}},
		{"master", componentbase.ClientConnectionConfiguration{}, "http://a b", []string{"--master: "}},
		{"content type", componentbase.ClientConnectionConfiguration{ContentType: "text/plain"}, "http://a", []string{`--kube-api-content-type (clientConnection.contentType): "text/plain" must be application/vnd.kubernetes.protobuf or application/json`}},
		{"no content type", componentbase.ClientConnectionConfiguration{ContentType: "/"}, "http://a", []string{`--kube-api-content-type (clientConnection.contentType): "/": `}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := ClientConfig(c.connection, c.master, "")
			if err == nil {
				t.Fatalf("no error, host %q", config.Host)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q, want %q in it", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than one line", err)
			}
		})
	}
}

// TestServer checks which address of the API server a client knows.
func TestServer(t *testing.T) {
	for host, want := range map[string]string{
		"https://192.0.2.1:6443": "[192.0.2.1:6443]", "192.0.2.1": "[192.0.2.1:80]", "https://[2001:db8::1]": "[[2001:db8::1]:443]",
		"https://api.example:6443": "[]", "https://192.0.2.1:6443/path": "[192.0.2.1:6443]",
	} {
		c, err := NewClient(&rest.Config{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.Server()); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

// TestApart checks that requests of a client apart do not use up the requests of the other one.
func TestApart(t *testing.T) {
	c, err := NewClient(&rest.Config{Host: "https://192.0.2.1", QPS: 0.001, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	if apart := c.Apart(); !apart.config.RateLimiter.TryAccept() || !c.config.RateLimiter.TryAccept() {
		t.Error("the client has no request left")
	}
}
