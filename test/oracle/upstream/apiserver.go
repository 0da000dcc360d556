// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"

	"github.com/slipstream-proxy/slipstream/test/oracle/program"
)

// StartAPI starts the API server, again after it was stopped, and returns when it serves.
func (c *ControlPlane) StartAPI(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	binary, err := Binary(ctx, "kube-apiserver", c.options.Log)
	if err != nil {
		return err
	}
	address := c.options.Address
	advertise := address.Addr().String()
	if address.Addr().IsLoopback() {
		advertise = "192.0.2.1" // for documentation: loopback is refused, and nothing connects to it
	}
	flags := []string{
		"--etcd-servers=" + etcdClients,
		"--bind-address=" + address.Addr().String(), fmt.Sprintf("--secure-port=%d", address.Port()),
		"--cert-dir=" + filepath.Dir(c.CertificateAuthority()), // it makes one and signs it itself
		"--token-auth-file=" + c.tokens(), "--authorization-mode=AlwaysAllow",
		"--service-cluster-ip-range=" + JoinPrefixes(c.options.ServiceCIDRs),
		// The Service "kubernetes" gets no endpoints.
		"--advertise-address=" + advertise, "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://oracle.invalid",
		"--service-account-key-file=" + c.serviceAccountKey(), "--service-account-signing-key-file=" + c.serviceAccountKey(),
		"--disable-admission-plugins=ServiceAccount", // it wants each pod to have one
	}
	c.api, err = program.Start(c.ns, c.dir, "kube-apiserver", binary, append(flags, c.options.APIFlags...)...)
	if err != nil {
		return err
	}
	return c.api.Await(ctx, c.apiReady)
}

// API is the API server's process, the last one that was started.
func (c *ControlPlane) API() *program.Program { return c.api }

// Address is where the API server listens.
func (c *ControlPlane) Address() string { return c.options.Address.String() }

// CertificateAuthority is the path of the certificates by which clients know the API
// server.
func (c *ControlPlane) CertificateAuthority() string {
	return filepath.Join(c.dir, "certificates", "apiserver.crt")
}

func (c *ControlPlane) tokens() string            { return filepath.Join(c.dir, "tokens.csv") }
func (c *ControlPlane) serviceAccountKey() string { return filepath.Join(c.dir, "service-account.key") }

// Compact has etcd forget what was before a revision, which is a resourceVersion of
// Kubernetes'.
func (c *ControlPlane) Compact(ctx context.Context, revision string) error {
	// etcd's API in JSON has 64-bit numbers as strings.
	body, err := json.Marshal(map[string]any{"revision": revision, "physical": true})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, etcdClients+"/v3/kv/compaction", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := c.ns.HTTPClient().Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if said, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: compact to revision %s: %s: %s (%v)", revision, response.Status, said, err)
	}
	return nil
}
