// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/lab"
	k8s "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Where things listen in the control plane's namespace, which has no other link than lo.
const (
	etcdClients = "http://127.0.0.1:2379"
	etcdPeers   = "http://127.0.0.1:2380"
	apiAddress  = "127.0.0.1:6443"
)

// startTimeout bounds how long a program may take to be of use. It is long: only a
// broken one gets there.
const startTimeout = time.Minute

// ControlPlane is an etcd and a kube-apiserver in a network namespace of their own,
// with no controllers: Services, EndpointSlices and Nodes are what they were written to
// be, validated and with defaults.
type ControlPlane struct {
	// Client writes and reads objects, without a limit on its rate.
	Client k8s.Interface

	// starting is held while a kube-proxy starts: that changes an object.
	starting sync.Mutex

	ns    *lab.Namespace
	dir   string
	token string
	etcd  *process
	api   *process
}

// StartControlPlane starts a control plane and returns when it serves. ClusterIPs are
// from serviceCIDRs, one or one of each family. What it writes is in a folder of dir
// and goes away with it.
func StartControlPlane(ctx context.Context, dir string, serviceCIDRs []string, log Log) (_ *ControlPlane, err error) {
	etcd, err := exec.LookPath("etcd")
	if err != nil {
		return nil, fmt.Errorf("%w (Debian's package is etcd-server; test/deps.sh installs it)", err)
	}
	apiserver, err := Binary(ctx, "kube-apiserver", log)
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{dir: filepath.Join(dir, "control-plane"), token: rand.Text()}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	if c.ns, err = lab.NewNamespace(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if c.etcd, err = start(c.ns, c.dir, "etcd", etcd,
		"--data-dir="+filepath.Join(c.dir, "etcd"),
		"--listen-client-urls="+etcdClients, "--advertise-client-urls="+etcdClients,
		"--listen-peer-urls="+etcdPeers, "--initial-advertise-peer-urls="+etcdPeers,
		"--initial-cluster=default="+etcdPeers,
	); err != nil {
		return nil, err
	}
	if err := c.etcd.await(ctx, c.dialEtcd); err != nil {
		return nil, err
	}
	if err := c.startAPI(apiserver, serviceCIDRs); err != nil {
		return nil, err
	}
	if c.Client, err = k8s.NewForConfig(c.restConfig()); err != nil {
		return nil, err
	}
	return c, c.api.await(ctx, c.apiReady)
}

func (c *ControlPlane) startAPI(binary string, serviceCIDRs []string) error {
	key, tokens := filepath.Join(c.dir, "service-account.key"), filepath.Join(c.dir, "tokens.csv")
	if err := writeKey(key); err != nil {
		return err
	}
	if err := os.WriteFile(tokens, []byte(c.token+",oracle,1,system:masters\n"), 0o600); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(apiAddress)
	var err error
	c.api, err = start(c.ns, c.dir, "kube-apiserver", binary,
		"--etcd-servers="+etcdClients,
		"--bind-address="+host, "--secure-port="+port,
		"--cert-dir="+filepath.Join(c.dir, "certificates"), // it makes one and signs it itself
		"--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow",
		"--service-cluster-ip-range="+strings.Join(serviceCIDRs, ","),
		// An address for documentation: nothing connects to it. The Service
		// "kubernetes" gets no endpoints.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		// Required, and of no use without pods.
		"--service-account-issuer=https://oracle.invalid",
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--disable-admission-plugins=ServiceAccount",
	)
	return err
}

func writeKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	return os.WriteFile(path, pem.EncodeToMemory(block), 0o600)
}

func (c *ControlPlane) restConfig() *rest.Config {
	return &rest.Config{
		Host:            "https://" + apiAddress,
		BearerToken:     c.token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // no other machine can be at the other end
		QPS:             -1,
		WarningHandler:  rest.NoWarnings{}, // of what is deprecated, and so has to be looked at
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialIn(ctx, c.ns, apiAddress)
		},
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
	}
}

func (c *ControlPlane) dialEtcd(ctx context.Context) error {
	conn, err := dialIn(ctx, c.ns, strings.TrimPrefix(etcdClients, "http://"))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (c *ControlPlane) apiReady(ctx context.Context) error {
	var code int
	c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code)
	if code != http.StatusOK {
		return fmt.Errorf("/readyz says %d", code)
	}
	return nil
}

// Close ends both programs and removes their files.
func (c *ControlPlane) Close() error {
	var errs []error
	for _, p := range []*process{c.api, c.etcd} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(append(errs, c.ns.Close(), os.RemoveAll(c.dir))...)
}

// dialIn makes a TCP connection within a namespace, to an address given as numbers.
func dialIn(ctx context.Context, ns *lab.Namespace, address string) (conn net.Conn, err error) {
	err = ns.Do(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}
