llamafactory-cli train conf/mine.yaml
