// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// The ServiceAccount of proxies, and the ClusterRole that is all they may do: the one
// that Kubernetes has for kube-proxy, bound as kubeadm does.
const (
	proxyNamespace = metav1.NamespaceSystem
	proxyAccount   = "kube-proxy"
	proxyRole      = "system:node-proxier"
)

func (p *Plane) allowProxies(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: proxyNamespace, Name: proxyAccount}}
	// The API server makes the namespace in the background when it first starts.
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := p.Client.CoreV1().ServiceAccounts(proxyNamespace).Create(ctx, account, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return err
	}
	_, err = p.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: proxyAccount},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: proxyRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: proxyNamespace, Name: proxyAccount}},
	}, metav1.CreateOptions{})
	return err
}

// Access is a proxy's access to the API server: a kubeconfig file that names a file with a
// token, as in a pod. The token is valid for an hour unless it is revoked.
type Access struct {
	Kubeconfig string // path

	plane     *Plane
	name      string
	tokenFile string
	bound     *corev1.Secret // the token is refused once this is deleted
	serial    int
}

// NewAccess writes a kubeconfig file into dir, under a name that is unique in the plane.
func (p *Plane) NewAccess(ctx context.Context, dir, name string) (*Access, error) {
	a := &Access{
		Kubeconfig: filepath.Join(dir, name+"-kubeconfig.yaml"),
		plane:      p, name: name,
		tokenFile: filepath.Join(dir, name+"-token"),
	}
	if err := a.Renew(ctx); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "default",
		"clusters": [{"name": "default", "cluster": {"server": "https://%s", "certificate-authority": %q}}],
		"users":    [{"name": "default", "user": {"tokenFile": %q}}],
		"contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}]}`,
		p.Address(), p.CertificateAuthority(), a.tokenFile)
	return a, os.WriteFile(a.Kubeconfig, []byte(config), 0o600)
}

// Renew puts another token into the file; the one before stays good.
func (a *Access) Renew(ctx context.Context) error {
	a.serial++
	core := a.plane.Client.CoreV1()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: proxyNamespace, Name: fmt.Sprintf("%s-%d", a.name, a.serial)}}
	secret, err := core.Secrets(proxyNamespace).Create(ctx, secret, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	request, err := core.ServiceAccounts(proxyNamespace).CreateToken(ctx, proxyAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: new(int64(3600)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				Kind: "Secret", APIVersion: "v1", Name: secret.Name, UID: secret.UID,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	a.bound = secret
	part := a.tokenFile + ".part"
	if err := os.WriteFile(part, []byte(request.Status.Token), 0o600); err != nil {
		return err
	}
	return os.Rename(part, a.tokenFile)
}

// Revoke makes the API server refuse the token in the file, like an expired one. Unless the API
// server restarts, it may accept the token for ten more seconds.
func (a *Access) Revoke(ctx context.Context) error {
	return a.plane.Client.CoreV1().Secrets(proxyNamespace).Delete(ctx, a.bound.Name, metav1.DeleteOptions{})
}
