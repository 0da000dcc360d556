// SPDX-License-Identifier: Apache-2.0

//go:build go1.27

package cluster

import (
	"crypto/mldsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
)

// TestMLDSA has a kube-apiserver with a certificate of ML-DSA (FIPS 204). Slipstream knows it by this certificate.
func TestMLDSA(t *testing.T) {
	dir := t.TempDir()
	certificate, key := filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	e := &env{T: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		BasicConstraintsValid: true, IsCA: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, p := range site.OnFabric(2) { // where site.Start has the control plane
		template.IPAddresses = append(template.IPAddresses, p.Addr().AsSlice())
	}
	secret, err := mldsa.GenerateKey(mldsa.MLDSA65())
	e.check(err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, secret.PublicKey(), secret)
	e.check(err)
	encoded, err := x509.MarshalPKCS8PrivateKey(secret)
	e.check(err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	e.check(errors.Join(
		os.WriteFile(certificate, text, 0o644),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600),
	))
	e = newEnvIn(t, startCluster(t, upstream.ControlPlaneOptions{
		APIFlags: []string{"--tls-cert-file=" + certificate, "--tls-private-key-file=" + key},
	}))
	authority := e.Plane.CertificateAuthority()
	e.check(errors.Join(os.MkdirAll(filepath.Dir(authority), 0o700), os.WriteFile(authority, text, 0o644)))

	// The server has this certificate and no other.
	c, err := e.Plane.RESTConfig().Dial(t.Context(), "tcp", e.Plane.Address())
	e.check(err)
	defer c.Close()
	session := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	e.check(session.HandshakeContext(t.Context()))
	if got := session.ConnectionState().PeerCertificates[0].PublicKeyAlgorithm; got != x509.MLDSA {
		t.Fatalf("the server's key is of %s", got)
	}

	n := e.Nodes[0]
	e.start(proxyKind(t), n)
	pod := e.pod(1, "web")
	e.knows(n, e.service("web", nil), pod)
}
