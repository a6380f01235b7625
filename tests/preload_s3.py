"""What S3's clients have imported and read before processes that use them are forked."""

from __future__ import annotations

import botocore.client
import botocore.httpsession
import botocore.session

from orbit_ckpt._src.storage import s3_client

IMPORTED = botocore.client, botocore.httpsession

_models = s3_client._loader(botocore.session.get_session().get_config_variable("data_path"))
for _kind in ("service-2", "endpoint-rule-set-1", "paginators-1"):
    _models.load_service_model("s3", _kind)
for _name in ("_retry", "endpoints", "partitions", "sdk-default-configuration"):
    _models.load_data(_name)
