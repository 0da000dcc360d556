//go:build go1.27

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/mldsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	componentbase "k8s.io/component-base/config/v1alpha1"
)

// TestMLDSA checks that objects arrive from an API server whose certificate, and its authority's, are
// of ML-DSA (FIPS 204), and that a client with such a certificate is known there. Another authority is refused.
func TestMLDSA(t *testing.T) {
	for _, p := range []mldsa.Parameters{mldsa.MLDSA44(), mldsa.MLDSA65(), mldsa.MLDSA87()} {
		t.Run(p.String(), func(t *testing.T) {
			authority := newIdentity(t, p, nil, "authority")
			other := newIdentity(t, p, nil, "other")
			pool := x509.NewCertPool()
			pool.AddCert(authority.certificate)

			w := newWorld(t, protobuf, service("web", "10.96.0.1"))
			s := httptest.NewUnstartedServer(w.server)
			s.TLS = &tls.Config{
				Certificates: []tls.Certificate{newIdentity(t, p, authority, "kube-apiserver").pair(t)},
				ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: pool,
			}
			s.StartTLS()
			t.Cleanup(s.Close)
			t.Cleanup(w.hangUp)

			client := newIdentity(t, p, authority, "kube-proxy")
			config := strings.NewReplacer(
				"https://192.0.2.1:6443", s.URL,
				"insecure-skip-tls-verify: true", "certificate-authority-data: "+base64.StdEncoding.EncodeToString(authority.certPEM),
				"tokenFile: token", "client-certificate-data: "+base64.StdEncoding.EncodeToString(client.certPEM)+
					", client-key-data: "+base64.StdEncoding.EncodeToString(client.keyPEM),
			).Replace(kubeconfig)
			w.client = w.newClient(componentbase.ClientConnectionConfiguration{Kubeconfig: write(t, "config", config)}, "")
			w.start().expect("Set Service default/web", "Synced")

			wrong := strings.Replace(config, base64.StdEncoding.EncodeToString(authority.certPEM), base64.StdEncoding.EncodeToString(other.certPEM), 1)
			stranger := w.newClient(componentbase.ClientConnectionConfiguration{Kubeconfig: write(t, "config", wrong)}, "")
			services, err := stranger.For(corev1.SchemeGroupVersion, &corev1.Service{}, &corev1.ServiceList{})
			if err != nil {
				t.Fatal(err)
			}
			if err := services.Get().Resource("services").Do(t.Context()).Error(); err == nil || !strings.Contains(err.Error(), "x509: ") {
				t.Errorf("a server of another authority: %v", err)
			}
		})
	}
}

// identity is a certificate with its key.
type identity struct {
	certificate     *x509.Certificate
	key             *mldsa.PrivateKey
	certPEM, keyPEM []byte
}

// newIdentity makes a certificate that the authority signs; without one it is an authority itself.
func newIdentity(t *testing.T, p mldsa.Parameters, authority *identity, name string) *identity {
	key, err := mldsa.GenerateKey(p)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: authority == nil,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, signer := template, key
	if authority != nil {
		parent, signer = authority.certificate, authority.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.PublicKey(), signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &identity{
		certificate: certificate, key: key,
		certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}
}

func (i *identity) pair(t *testing.T) tls.Certificate {
	pair, err := tls.X509KeyPair(i.certPEM, i.keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
