// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"errors"
	"fmt"
	"mime"
	"runtime"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	componentbase "k8s.io/component-base/config/v1alpha1"
)

// ClientConfig returns the configuration of a client, as in kube-proxy: from connection's
// kubeconfig file and master, the URL of a server, which overrides the file's. If neither
// is given, it returns the configuration of a pod in the cluster. Tokens and certificates
// in files are read again when they change.
//
// Empty fields of connection have kube-proxy's defaults: contentType
// application/vnd.kubernetes.protobuf, qps 5 (negative for no limit), burst 10.
// version is part of the user agent.
//
// Errors name the flag and the field of the configuration file.
func ClientConfig(connection componentbase.ClientConnectionConfiguration, master, version string) (*rest.Config, error) {
	if err := checkContentType(connection.ContentType); err != nil {
		return nil, err
	}
	config, err := locate(connection.Kubeconfig, master)
	if err != nil {
		return nil, err
	}
	config.ContentType = cmp.Or(connection.ContentType, kruntime.ContentTypeProtobuf)
	config.AcceptContentTypes = connection.AcceptContentTypes
	config.QPS = cmp.Or(connection.QPS, rest.DefaultQPS)
	config.Burst = int(cmp.Or(connection.Burst, int32(rest.DefaultBurst)))
	config.UserAgent = fmt.Sprintf("slipstream/%s (%s/%s)", cmp.Or(version, "unknown"), runtime.GOOS, runtime.GOARCH)
	return config, nil
}

func checkContentType(contentType string) error {
	if contentType == "" {
		return nil
	}
	const field = "--kube-api-content-type (clientConnection.contentType)"
	switch media, _, err := mime.ParseMediaType(contentType); {
	case err != nil:
		return fmt.Errorf("%s: %q: %w", field, contentType, err)
	case media != kruntime.ContentTypeProtobuf && media != kruntime.ContentTypeJSON:
		return fmt.Errorf("%s: %q must be %s or %s", field, contentType, kruntime.ContentTypeProtobuf, kruntime.ContentTypeJSON)
	}
	return nil
}

// locate finds the server and the credentials for it.
func locate(kubeconfig, master string) (*rest.Config, error) {
	if kubeconfig == "" && master == "" {
		config, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, errors.New("where is the API server? Give --kubeconfig (clientConnection.kubeconfig) or --master; " +
				"without both, this has to be a pod of the cluster, in which KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are set")
		case err != nil:
			return nil, fmt.Errorf("neither --kubeconfig (clientConnection.kubeconfig) nor --master is given, and as a pod of the cluster: %w", err)
		}
		return config, nil
	}
	if master != "" {
		if _, _, err := rest.DefaultServerUrlFor(&rest.Config{Host: master}); err != nil {
			return nil, fmt.Errorf("--master: %w", err)
		}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: master}},
	).ClientConfig()
	if err != nil {
		if kubeconfig == "" {
			return nil, fmt.Errorf("--master: %w", err)
		}
		return nil, fmt.Errorf("--kubeconfig (clientConnection.kubeconfig): %s: %w", kubeconfig, err)
	}
	return config, nil
}
